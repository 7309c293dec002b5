class MissedStorms:
    higher_is_better = False

    def __init__(self, *, missed: float = 5.0):
        self.missed = missed  # cost of a storm that is not predicted; other mistakes cost 1

    def __call__(self, predictions, targets):
        pairs = zip(predictions, targets, strict=True)
        wrong = [target for predicted, target in pairs if predicted != target]
        return sum(self.missed if target == "stormy" else 1.0 for target in wrong) / len(targets)
