"""Functions that prepare the inputs of an exported model without dxn and torch.

`dxn export` copies the ones that a model needs to the exported folder. Each module has a function
`prepare(values, options)`, where the options are those of the input in preprocess.json. It returns
the arrays of a batch, which equal those of the tokenizer of dxn. A module can import others of
this package, and those of dxn.tokenize that need nothing but Python, such as the parsers of numbers
and dates: they are copied as well.
"""
