"""Data-parallel training of a small PyTorch model on parts of each batch: one allreduce in each step adds up gradients.

    hotlease comm run -n 2 python examples/12_training/train.py

Rank 0 also trains the same model alone, on whole batches, and compares the weights: only rounding differs.
"""

import numpy as np
import torch

from hotlease import MPI

FEATURES, POINTS, BATCH, STEPS = 28, 8192, 512, 64


def model():
    torch.manual_seed(1)
    layers = [torch.nn.Linear(FEATURES, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)]
    return torch.nn.Sequential(*layers)


def data():
    """Returns generated collisions, and whether they are signals. The model has to learn the rule for that."""
    random = torch.Generator().manual_seed(2)
    points = torch.randn(POINTS, FEATURES, generator=random)
    return points, (torch.sin(points[:, :4]).sum(dim=1, keepdim=True) > 0).double()


def in_one_piece(tensors):
    """Returns a tensor with copies of all `tensors`, one after another, and for each tensor a view of its copy."""
    whole = torch.cat([tensor.detach().flatten() for tensor in tensors])
    parts = whole.split([tensor.numel() for tensor in tensors])
    return whole, [part.view_as(tensor) for part, tensor in zip(parts, tensors)]


def train(world, net, points, labels):
    parameters = list(net.parameters())
    weights, views = in_one_piece(parameters)
    gradients, slopes = in_one_piece([torch.zeros_like(weight) for weight in views])
    for parameter, view, slope in zip(parameters, views, slopes):
        parameter.data, parameter.grad = view, slope  # backward() adds to the gradient in place
    # The numpy array and the model share memory: received data is in the model at once.
    world.Bcast(weights.numpy())
    optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
    losses = np.zeros(STEPS)
    for step in range(STEPS):
        batch = torch.arange(step * BATCH, (step + 1) * BATCH) % POINTS
        mine = batch[world.rank :: world.size]
        gradients.zero_()
        # This rank's part of the mean over the whole batch: divides by BATCH, because ranks may have different numbers of points.
        loss = torch.nn.functional.binary_cross_entropy_with_logits(net(points[mine]), labels[mine], reduction="sum") / BATCH
        loss.backward()
        world.Allreduce(MPI.IN_PLACE, gradients.numpy())
        optimizer.step()
        losses[step] = loss.item()
    world.Allreduce(MPI.IN_PLACE, losses)
    return weights, losses


torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)  # one thread for each rank
world = MPI.COMM_WORLD
points, labels = data()
weights, losses = train(world, model(), points, labels)
everybodys = world.allgather(weights.numpy().tobytes())
assert everybodys == everybodys[:1] * world.size, "all ranks have the same weights, to the last bit"
if world.rank == 0:
    alone, losses_alone = train(MPI.COMM_SELF, model(), points, labels)
    apart = (weights - alone).abs().max().item()
    assert apart < 1e-9 and np.allclose(losses, losses_alone, rtol=1e-9), f"weights differ from those of one process by {apart}"
    print(f"loss {losses[0]:.6f} -> {losses[-1]:.6f} in {STEPS} steps on {world.size} ranks, as on one")
