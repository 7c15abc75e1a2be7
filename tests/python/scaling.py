"""scaling.py - a layer that trains by losses that a GradScaler scales, as suites
of PyTorch on a processor and on a GPU ask for it."""

import torch


def check_grad_scaler(attend, rows):
    """A loss that is not finite has such gradients, and its step is left out. Also
    backward under autocast itself, as GigaPath's training runs."""
    device, width = rows.device.type, rows.shape[-1]
    for inside in (False, True):
        layer = torch.nn.Linear(width, 3 * width, device=device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=65536.0)
        for factor, steps in ((1.0, True), (torch.inf, False), (1.0, True)):
            before = layer.weight.detach().clone()
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16):
                loss = (attend(*layer(rows).chunk(3, -1)).float() * factor).mean()
                if inside:
                    scaler.scale(loss).backward()
            if not inside:
                scaler.scale(loss).backward()
            assert bool(layer.weight.grad.isfinite().all()) == steps
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(before, layer.weight) != steps
