"""Forecasting: predict the next values of a series, with quantiles."""
