"""What the names of metrics mean, for readers who do not know them."""

MEANINGS = {
    "loss": "The value that the training minimizes. Lower is better.",
    "accuracy": "Share of right answers.",
    "accuracy_top5": "Share of rows whose class is among the five most probable ones.",
    "balanced_accuracy": "Mean over the classes of the share of their rows that is right.",
    "log_loss": "Mean negative logarithm of the probability of the right class. Lower is better.",
    "roc_auc": "Probability that a row of a class gets a higher probability of it than a row of "
    "another class; 0.5 is chance. With more than two classes or with labels: the mean over them.",
    "f1_macro": "Mean F1 of the classes. F1 is the harmonic mean of precision and recall. Each "
    "class counts the same, whatever its number of rows.",
    "f1_micro": "F1 over all decisions about single labels.",
    "exact_match": "Share of rows whose answer equals the target completely.",
    "average_precision": "Area below the precision-recall curve of the rarer class; chance is its "
    "share of the rows. With more than two classes or with labels: the mean over them.",
    "rmse": "Root mean squared error, in the unit of the target. Large errors count most.",
    "mae": "Mean absolute error, in the unit of the target.",
    "r2": "Share of the variance of the target that the predictions explain. 1 is perfect, and 0 "
    "is as good as always predicting the mean.",
    "bleu": "Overlap of words and phrases with the references, 0 to 100. It is 0 if no four words "
    "in a row agree anywhere, so it does not suit texts of a few words.",
    "chrf": "Overlap of character sequences with the references, 0 to 100.",
    "wer": "Word errors per word of the references. Lower is better.",
    "cer": "Character errors per character of the references. Lower is better.",
    "precision_entity": "Share of the predicted entities that are right.",
    "recall_entity": "Share of the true entities that are found.",
    "f1_entity": "Harmonic mean of the precision and the recall of entities.",
    "perplexity": "Number of equally probable tokens between which the model chooses on average. "
    "Lower is better.",
    "mase": "Mean absolute error divided by that of repeating the last season of the training "
    "data. Below 1 is better than repeating.",
    "crps": "Continuous ranked probability score: error of the whole predicted distribution. Lower "
    "is better.",
    "coverage": "Share of the true values between the lowest and the highest predicted quantile.",
}
INTERVAL = (
    "The interval below a figure contains 95% of the values on resampled rows (bootstrap). Two "
    "models whose intervals overlap can still differ: dxn compare tests this on equal rows. If all "
    "resampled values are equal, only shares of right rows have an interval, the exact one of "
    "Clopper and Pearson."
)
