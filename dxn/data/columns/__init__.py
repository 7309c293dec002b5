"""What is in the columns of a table: inputs, target, columns without use."""
