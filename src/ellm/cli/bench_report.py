"""The figures of a benchmark, as a table for people and as JSON."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ellm.cli.report import format_rate, memory_text
from ellm.cli.tables import Cells, aligned
from ellm.units import count_of, format_bytes, format_count

if TYPE_CHECKING:
    from ellm.config.benchmark import BenchmarkPlan
    from ellm.engine.benchmark_outputs import DepthResult, Timings
    from ellm.engine.stats import ModelFacts
    from ellm.hardware.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """Everything that was measured, and what it depends on.

    Attributes:
        version: eLLM's version.
        command: Words of the command line.
        model: Name of the model file.
        text: The text's path, or None for random tokens.
        machine: Where it ran.
        facts: The loaded model.
        kv_type: Storage of keys and values.
        plan: What was timed.
        read_bandwidth_gb_per_s: Measured read bandwidth with the same threads, in 1e9 bytes.
        depths: One result each, the least depth first.
    """

    version: str
    command: tuple[str, ...]
    model: str
    text: str | None
    machine: Machine
    facts: ModelFacts
    kv_type: str
    plan: BenchmarkPlan
    read_bandwidth_gb_per_s: float
    depths: tuple[DepthResult, ...]

    @property
    def peak_rss_bytes(self) -> int:
        """Most memory that was held, before that which measuring the bandwidth takes."""
        return self.depths[-1].peak_rss_bytes

    def mem_bandwidth_util(self, result: DepthResult) -> float:
        """Return the share of the read bandwidth that the median decode step reached."""
        return result.gb_per_s / self.read_bandwidth_gb_per_s


def bench_values(report: BenchReport) -> dict[str, Any]:
    """Return every figure for JSON; times are medians, each with its range [least, most]."""
    facts = report.facts
    return {
        "version": report.version,
        "command": list(report.command),
        "model": report.model,
        "text": report.text,
        "machine": {**dataclasses.asdict(report.machine), "isa": facts.isa},
        "isa": facts.isa,
        "threads": facts.threads,
        "kv_type": report.kv_type,
        "attention": report.plan.attention.mode,
        "rows_per_chunk": report.plan.rows_per_chunk,
        "n": report.plan.decode_steps,
        "n_by_rows": report.plan.repetitions,
        "read_bandwidth_gb_per_s": report.read_bandwidth_gb_per_s,
        "decode_tokens_per_second": report.depths[0].decode_tokens_per_second,
        "weights_bytes": facts.weights_bytes,
        "kv_bytes": facts.kv_bytes,
        "arena_bytes": facts.arena_bytes,
        "peak_rss_bytes": report.peak_rss_bytes,
        "rows": [_depth_values(report, result) for result in report.depths],
    }


def bench_table(report: BenchReport) -> str:
    """Return the tables, with what the figures depend on above them."""
    facts, machine = report.facts, report.machine
    about = {
        "model": f"{report.model}, {report.kv_type} KV, {report.plan.attention.mode} attention",
        "text": report.text or "random tokens",
        "machine": f"{machine.cpu}, {count_of(machine.usable_cpus, 'CPU')} to use, "
        f"{format_bytes(machine.available_memory_bytes)} of memory available",
        "engine": f"eLLM {report.version}, {facts.isa}, {count_of(facts.threads, 'thread')}, "
        f"which read {report.read_bandwidth_gb_per_s:.1f} GB/s from memory",
        "memory": memory_text(facts, report.peak_rss_bytes),
        "command": shlex.join(report.command),
    }
    return "\n".join(
        [
            *(f"{name:<8} {text}" for name, text in about.items()),
            "",
            f"Decoding: median (range) of n = {report.plan.decode_steps} steps; "
            "prefill from an empty cache",
            *aligned(_depths_table(report)),
            "",
            "Steps of one sequence with logits for each row: ms per step, median (range) of "
            f"n = {report.plan.repetitions}",
            *aligned(_rows_table(report)),
        ]
    )


def _depth_values(report: BenchReport, result: DepthResult) -> dict[str, Any]:
    return {
        "depth_tokens": result.depth_tokens,
        "prefill_tokens_per_second": result.prefill_tokens_per_second,
        "decode_tokens_per_second": result.decode_tokens_per_second,
        "decode_ms_per_token": _median_ms(result.decode),
        "decode_ms_range": _range_ms(result.decode),
        "bytes_per_token": result.bytes_per_token,
        "kv_blocks_read_share": result.read_share,
        "skipped_mass": result.choices.skipped_mass,
        "gb_per_s": result.gb_per_s,
        "mem_bandwidth_util": report.mem_bandwidth_util(result),
        "step_ms_by_rows": {str(n): _median_ms(times) for n, times in result.steps.items()},
        "step_ms_range_by_rows": {str(n): _range_ms(times) for n, times in result.steps.items()},
        "peak_rss_bytes": result.peak_rss_bytes,
    }


def _depths_table(report: BenchReport) -> list[Cells]:
    head = (
        "depth",
        "prefill",
        "decode",
        "ms per token",
        "KV blocks",
        "read",
        "of bandwidth",
        "peak memory",
    )
    return [
        head,
        *(
            (
                format_count(result.depth_tokens),
                format_rate(result.prefill_tokens_per_second),
                format_rate(result.decode_tokens_per_second),
                _shown(result.decode),
                f"{result.read_share:.0%}",
                f"{result.gb_per_s:.1f} GB/s",
                f"{report.mem_bandwidth_util(result):.0%}",
                format_bytes(result.peak_rss_bytes),
            )
            for result in report.depths
        ),
    ]


def _rows_table(report: BenchReport) -> list[Cells]:
    head = ("rows", *(f"at depth {format_count(each.depth_tokens)}" for each in report.depths))
    return [
        head,
        *(
            (str(rows), *(_shown(result.steps[rows]) for result in report.depths))
            for rows in report.plan.row_counts
        ),
    ]


def _median_ms(times: Timings) -> float:
    return times.median_seconds * 1e3


def _range_ms(times: Timings) -> list[float]:
    return [seconds * 1e3 for seconds in times.range_seconds]


def _shown(times: Timings) -> str:
    least, most = _range_ms(times)
    return f"{_median_ms(times):.2f} ({least:.2f}..{most:.2f})"
