from dataclasses import dataclass

from torch.nn.functional import cross_entropy

from dxn.tasks import Classify, LossSum


@dataclass(kw_only=True, eq=False)
class Focal(Classify):
    name = "focal"

    gamma: float = 2.0  # how little a class counts that is predicted well (arXiv:1708.02002)

    def loss(self, output, batch):
        losses = cross_entropy(output.float(), batch["target"], reduction="none")
        # A sum over the samples, and their number. The loss of the class -100 is 0.
        return LossSum.of((1 - (-losses).exp()) ** self.gamma * losses)
