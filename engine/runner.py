"""Turns a plan into tensors, runs the step, and keeps what stays on the device: weights, caches, the lanes' last tokens.

`submit` returns at once; steps run one after the other in the order of submission, so that the loop can plan the next
step meanwhile. Nothing in the step's function depends on values on the host: it is one graph of fixed shapes.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter_ns

import torch
from torch import Tensor

from trnprof.engine.cache.prefix_cache import Copy, CopyKind
from trnprof.engine.config import EngineConfig, ModelConfig
from trnprof.engine.device import Device
from trnprof.engine.kernels.contracts import Kernels
from trnprof.engine.model.caches import SPARE, ZERO_SLOT, allocate_caches
from trnprof.engine.model.decoder import Batch, Decoder
from trnprof.engine.model.weights import ModelWeights
from trnprof.engine.plan import ON_DEVICE, StepPlan, StepResult
from trnprof.engine.shapes import Shape, ShapeList, StepKind
from trnprof.engine.timing import OperationTimer


@dataclass(frozen=True)
class StepInputs:
    """The tensors of one step, shaped by its Shape: R rows, W tokens a row, J saved states."""

    tokens: Tensor
    """[R, W], ON_DEVICE where the lane's last tokens stand."""
    starts: Tensor
    lengths: Tensor
    page_table: Tensor
    read_slots: Tensor
    write_slots: Tensor
    save_after: Tensor
    lanes: Tensor
    """[R]: whose last token is read, and written by rows that sample; padding and other rows have lane 0."""
    write_lanes: Tensor
    following: Tensor
    """[R]"""
    temperature: Tensor
    top_p: Tensor
    seeds: Tensor
    forbid_until: Tensor
    """[R]: end-of-text tokens are forbidden at answer positions before this absolute position."""


class TorchRunner:
    """Steps of a Decoder on one device."""

    def __init__(
        self,
        model: ModelConfig,
        engine: EngineConfig,
        weights: ModelWeights,
        kernels: Kernels,
        *,
        device: Device,
        expert_form: str = "expert_once",
        timer: OperationTimer | None = None,
    ) -> None:
        self.model, self.engine, self.device = model, engine, device
        self.draft_tokens = engine.draft_tokens
        self.shapes = ShapeList(engine, model)
        self.timer = timer
        kernels = device.kernels(kernels)
        if timer is not None:
            kernels = timer.wrap(kernels)
        self.decoder = Decoder(
            model, weights, kernels, context=self.shapes.max_context + 1 + engine.draft_tokens, expert_form=expert_form
        )
        dtype = weights.embedding.dtype
        self.caches = allocate_caches(
            model, pages=engine.pages, page_size=engine.page_size, slots=engine.slots, dtype=dtype, device=device.name
        )
        self.host = allocate_caches(
            model, pages=engine.host_pages, page_size=engine.page_size, slots=engine.host_snapshots, dtype=dtype
        )
        lanes = 1 + engine.lanes
        with torch.inference_mode():  # as a step makes them: another kind of tensor would be another graph
            self.last = torch.zeros(lanes, dtype=torch.int64, device=device.name)
            self.drafts = torch.zeros(lanes, max(engine.draft_tokens, 1), dtype=torch.int64, device=device.name)
        self.eos = torch.zeros(model.vocab, dtype=torch.bool, device=device.name)
        self.eos[list(model.eos)] = True
        self._worker = ThreadPoolExecutor(1, "trnprof-step", initializer=device.prepare_thread)

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        """See Runner."""
        if plan.shape not in self.shapes:
            raise ValueError(f"{plan.shape.name} is not a compiled shape")
        return self._worker.submit(self._run, plan)

    def close(self) -> None:
        """See Runner."""
        self._worker.shutdown()

    def warm_up(self) -> int:
        """Run every shape once on padding rows, so that it is compiled; returns how many there are."""
        for shape in self.shapes:
            self._worker.submit(self._run, StepPlan(0, shape, [])).result()
        return len(self.shapes)

    @torch.inference_mode()
    def _run(self, plan: StepPlan) -> StepResult:
        started = perf_counter_ns()
        for copy in plan.copies:
            self._copy(copy)
        copied = perf_counter_ns()
        inputs = self.inputs(plan)
        prepared = perf_counter_ns()
        if self.timer is not None:
            self.timer.begin()
        step = self.device.compiled(plan.shape, self.step)
        chosen, accepted, self.last, self.drafts, marks = step(plan.shape, inputs, self.last, self.drafts)
        # The only wait for the device: tokens and counts of all rows together.
        tokens = chosen.tolist()
        counts = accepted.tolist()
        ended = perf_counter_ns()
        forward, sampled = marks or (ended, ended)
        return StepResult(
            tokens=[tokens[r][: counts[r] + 1] if row.samples else [] for r, row in enumerate(plan.rows)],
            started=started,
            ended=ended,
            copy_ns=copied - started,
            prepare_ns=prepared - copied,
            forward_ns=forward - prepared,
            sample_ns=sampled - forward,
            draft_ns=ended - sampled,
            operations=self.timer.end() if self.timer is not None else [],
        )

    def inputs(self, plan: StepPlan) -> StepInputs:
        """The plan as tensors, padded to its shape: padding rows read the zero slot and write the spare slot and page."""
        shape, rows = plan.shape, plan.rows
        saves = 3 if shape.kind is StepKind.PREFILL else shape.width
        pages = shape.context // self.engine.page_size
        tokens = [[0] * shape.width for _ in range(shape.rows)]
        table = [[SPARE] * pages for _ in range(shape.rows)]
        write = [[SPARE] * saves for _ in range(shape.rows)]
        after = [[0] * saves for _ in range(shape.rows)]
        for r, row in enumerate(rows):
            tokens[r][: len(row.tokens)] = row.tokens
            held = row.pages[:pages]
            table[r][: len(held)] = held
            for j, (count, slot) in enumerate(row.saves):
                write[r][j], after[r][j] = slot, count
        pad = shape.rows - len(rows)
        # All columns of integers as one tensor: a small tensor costs as much to make as a large one.
        columns = [
            [row.start for row in rows] + [0] * pad,
            [len(row.tokens) for row in rows] + [0] * pad,
            [row.read_slot for row in rows] + [ZERO_SLOT] * pad,
            [row.lane for row in rows] + [0] * pad,
            [row.lane if row.samples else 0 for row in rows] + [0] * pad,
            [row.following for row in rows] + [0] * pad,
            [row.request.sampling.seed for row in rows] + [0] * pad,
            [len(row.request.prompt) + row.request.sampling.min_tokens for row in rows] + [0] * pad,
        ]
        starts, lengths, read, lanes, write_lanes, following, seeds, forbid_until = torch.tensor(columns).unbind(0)
        temperatures = [row.request.sampling.temperature for row in rows] + [0.0] * pad
        top_p = [row.request.sampling.top_p for row in rows] + [1.0] * pad
        return self.device.send(
            StepInputs(
                tokens=torch.tensor(tokens),
                starts=starts,
                lengths=lengths,
                page_table=torch.tensor(table),
                read_slots=read,
                write_slots=torch.tensor(write),
                save_after=torch.tensor(after),
                lanes=lanes,
                write_lanes=write_lanes,
                following=following,
                temperature=torch.tensor(temperatures, dtype=torch.float32),
                top_p=torch.tensor(top_p, dtype=torch.float32),
                seeds=seeds,
                forbid_until=forbid_until,
            )
        )

    # The step itself: what is compiled.

    def step(
        self, shape: Shape, inputs: StepInputs, last: Tensor, drafts: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[int, int] | None]:
        """(tokens [R, T], accepted drafts [R], the lanes' last tokens and drafts anew, times or None).

        T is 1, or W in a verification, of whose tokens the first accepted + 1 count.
        """
        prefill = shape.kind is StepKind.PREFILL
        tokens = self._tokens(shape, inputs, last, drafts)
        batch = Batch(
            tokens=tokens,
            starts=inputs.starts,
            lengths=inputs.lengths,
            page_table=inputs.page_table,
            read_slots=inputs.read_slots,
            write_slots=inputs.write_slots,
            save_after=inputs.save_after if prefill else None,
        )
        hidden = self.decoder.forward(batch, self.caches)
        end = (inputs.lengths - 1).clamp(min=0)
        scored = _at(hidden, end) if prefill else hidden
        logits = self.decoder.logits(scored)
        first = inputs.starts.unsqueeze(1) + (end.unsqueeze(1) if prefill else 0) + 1
        positions = first + torch.arange(scored.shape[1], device=first.device)
        forward = self.device.mark()
        chosen = self._choose(shape, logits, inputs, positions)
        if shape.kind is StepKind.VERIFY:
            agrees = (chosen[:, :-1] == tokens[:, 1:]).to(torch.int64)
            accepted = agrees.cumprod(1).sum(1)
        else:
            accepted = torch.zeros_like(inputs.starts)
        newest = chosen.gather(1, accepted.unsqueeze(1)).squeeze(1)
        last = last.scatter(0, inputs.write_lanes, newest)
        sampled = self.device.mark()
        if self.draft_tokens:
            proposed = self._draft(shape, batch, inputs, hidden, chosen, accepted)
            drafts = drafts.scatter(0, inputs.write_lanes.unsqueeze(1).expand_as(proposed), proposed)
        marks = (forward, sampled) if forward is not None and sampled is not None else None
        return chosen, accepted, last, drafts, marks

    def _tokens(self, shape: Shape, inputs: StepInputs, last: Tensor, drafts: Tensor) -> Tensor:
        """Fed tokens, with those that only the device knows."""
        if shape.kind is StepKind.PREFILL:
            return inputs.tokens
        newest = last[inputs.lanes].unsqueeze(1)
        if shape.kind is StepKind.VERIFY:
            newest = torch.cat((newest, drafts[inputs.lanes]), 1)
        return torch.where(inputs.tokens == ON_DEVICE, newest, inputs.tokens)

    def _choose(self, shape: Shape, logits: Tensor, inputs: StepInputs, positions: Tensor) -> Tensor:
        kernels = self.decoder.kernels
        if not shape.sampled:
            return kernels.greedy(logits)
        forbidden = (positions < inputs.forbid_until.unsqueeze(1)).unsqueeze(-1) & self.eos
        logits = logits.masked_fill(forbidden, -torch.inf)
        return kernels.sample(logits, inputs.temperature, inputs.top_p, inputs.seeds, positions)

    def _draft(
        self, shape: Shape, batch: Batch, inputs: StepInputs, hidden: Tensor, chosen: Tensor, accepted: Tensor
    ) -> Tensor:
        """Tokens that the MTP layer expects next, [R, draft_tokens].

        It runs over the same positions as the model (its keys and values are cached like any layer's), each with the
        token that follows; then from its own hidden state, a position at a time. What it caches at positions whose
        drafts are rejected is overwritten when the real tokens come.
        """
        if shape.kind is StepKind.PREFILL:
            end = (inputs.lengths - 1).clamp(min=0)
            following = torch.where(inputs.following == ON_DEVICE, chosen[:, 0], inputs.following)
            shifted = torch.cat((batch.tokens[:, 1:], batch.tokens[:, :1]), 1)
            tokens = shifted.scatter(1, end.unsqueeze(1), following.unsqueeze(1))
        else:
            end, tokens = accepted, chosen
        drafted = self.decoder.draft(hidden, _with_tokens(batch, tokens, batch.starts), self.caches)
        state = _at(drafted, end)
        proposals: list[Tensor] = []
        for ahead in range(self.draft_tokens):
            if ahead:
                nxt = _with_tokens(batch, proposals[-1], batch.starts + end + ahead, single=True)
                state = self.decoder.draft(state, nxt, self.caches)
            proposals.append(self.decoder.kernels.greedy(self.decoder.logits(state)))
        return torch.cat(proposals, 1)

    # Host memory

    def _copy(self, copy: Copy) -> None:
        device, host = self.caches, self.host
        if copy.kind in (CopyKind.PAGE_IN, CopyKind.PAGE_OUT):
            pairs = zip(device.key_pages + device.value_pages, host.key_pages + host.value_pages, strict=True)
        else:
            pairs = zip(device.banks, host.banks, strict=True)
        for on_device, on_host in pairs:
            if copy.kind in (CopyKind.PAGE_OUT, CopyKind.SLOT_OUT):
                on_host[copy.target].copy_(on_device[copy.source])
            else:
                on_device[copy.target].copy_(on_host[copy.source])


def _at(x: Tensor, index: Tensor) -> Tensor:
    """x[r, index[r]] of x [R, W, D], as [R, 1, D]."""
    return x.gather(1, index[:, None, None].expand(-1, 1, x.shape[-1]))


def _with_tokens(batch: Batch, tokens: Tensor, starts: Tensor, *, single: bool = False) -> Batch:
    """The batch's rows and pages with other tokens; `single`: one token a row, attended as in decode."""
    return Batch(
        tokens=tokens,
        starts=starts,
        lengths=batch.lengths.clamp(max=1) if single else batch.lengths,
        page_table=batch.page_table,
        read_slots=batch.read_slots,
        write_slots=batch.write_slots,
        save_after=None if single else batch.save_after,
    )
