/* log|K|, e'K^-1 e and posterior variances in quadruple precision (113 bits), for n of some tens.

   A kernel is a sum of terms, each a product of factors. kinds[t * FACTORS + f] is the factor f of term t:
   -1 none, 0 RBF, 1, 3 and 5 Matern of order kinds/2, 9 linear. Each factor has d lengthscales (linear: d
   variances) and one variance (linear: 1). */

#include <quadmath.h>

#define FACTORS 2
typedef __float128 real;

static real factor(int kind, int d, const double *scale, double variance, const double *a, const double *b)
{
    real sum = 0;
    if (kind == 9) {
        for (int j = 0; j < d; j++)
            sum += (real)scale[j] * a[j] * b[j];
        return sum;
    }
    for (int j = 0; j < d; j++) {
        real step = ((real)a[j] - b[j]) / scale[j];
        sum += step * step;
    }
    if (kind == 0)
        return variance * expq(-sum / 2);
    real s = sqrtq(kind * sum), polynomial = 1;
    if (kind >= 3)
        polynomial += s;
    if (kind == 5)
        polynomial += s * s / 3;
    return variance * polynomial * expq(-s);
}

static real kernel(int terms, const int *kinds, int d, const double *scale, const double *variance,
                   const double *a, const double *b)
{
    real sum = 0;
    for (int t = 0; t < terms; t++) {
        real product = 1;
        for (int f = t * FACTORS; f < (t + 1) * FACTORS; f++)
            if (kinds[f] >= 0)
                product *= factor(kinds[f], d, scale + f * d, variance[f], a, b);
        sum += product;
    }
    return sum;
}

/* z := L^-1 z */
static void half_solve(int n, const real *L, real *z)
{
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < i; k++)
            z[i] -= L[i * n + k] * z[k];
        z[i] /= L[i * n + i];
    }
}

/* Returns 0, or 1 if K is not positive definite even in this precision. found: log|K|, e'K^-1 e, then one
   variance per row of Xs. L and z are work space of n*n and n reals. */
int reference(int n, int d, int ns, int terms, const int *kinds, const double *scale, const double *variance,
              double noise, double mean, const double *X, const double *y, const double *Xs, real *L, real *z,
              double *found)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            real sum = kernel(terms, kinds, d, scale, variance, X + i * d, X + j * d);
            if (i == j)
                sum += noise;
            for (int k = 0; k < j; k++)
                sum -= L[i * n + k] * L[j * n + k];
            if (i > j)
                L[i * n + j] = sum / L[j * n + j];
            else if (!(sum > 0))
                return 1;
            else
                L[i * n + i] = sqrtq(sum);
        }
    real logdet = 0, form = 0;
    for (int i = 0; i < n; i++) {
        logdet += 2 * logq(L[i * n + i]);
        z[i] = (real)y[i] - mean;
    }
    half_solve(n, L, z);
    for (int i = 0; i < n; i++)
        form += z[i] * z[i];
    found[0] = (double)logdet;
    found[1] = (double)form;
    for (int s = 0; s < ns; s++) {
        const double *x = Xs + s * d;
        real left = kernel(terms, kinds, d, scale, variance, x, x);
        for (int i = 0; i < n; i++)
            z[i] = kernel(terms, kinds, d, scale, variance, X + i * d, x);
        half_solve(n, L, z);
        for (int i = 0; i < n; i++)
            left -= z[i] * z[i];
        found[2 + s] = (double)left;
    }
    return 0;
}
