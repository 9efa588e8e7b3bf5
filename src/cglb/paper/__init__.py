"""The paper's experiments: what is run (`spec`), how (`execute`, `score`, `workers`), where it is kept
(`runs`), and what is made of it (`watch`, `table`, `figures`)."""
