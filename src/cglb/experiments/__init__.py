"""The paper's experiments: what runs (`spec`), how (`execute`, `score`, `workers`), where results are
stored (`runs`), and how they are shown (`watch`, `table`, `figures`)."""
