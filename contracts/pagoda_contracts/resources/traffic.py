"""How a service meets its clients: objectives, rollouts, drain, health and routing of an InferenceService."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, StringConstraints

from pagoda_contracts.resources.meta import DnsName, Model, Rule
from pagoda_contracts.units import DURATION_PATTERN, Duration, parse_duration

Percent = Annotated[str, StringConstraints(max_length=8, pattern=r"^(100|[0-9]{1,2}(\.[0-9]{1,3})?)%$")]
RATIO_PATTERN: Final = rf"^[0-9]{{1,3}}(\.[0-9]{{1,3}})?x$|{DURATION_PATTERN}"
RatioOrDuration = Annotated[str, StringConstraints(max_length=48, pattern=RATIO_PATTERN)]


class SloSpec(Model):
    """The latency that clients are promised. Goodput counts the answers that met it."""

    ttft: Duration | None = Field(default=None, description="Time to first token, a duration such as 800ms.")
    itl: Duration | None = Field(default=None, description="Time between tokens, a duration such as 50ms.")


class CanaryStep(Model):
    """One share of traffic, for a time."""

    weight: int = Field(ge=1, le=100, description="Percent of requests that the new revision gets.")
    hold: Duration = Field(description="How long before the next step, such as 10m.")


class AbortOn(Model):
    """What ends a canary and brings the old revision back."""

    error_rate: Percent | None = Field(default=None, description="Share of failed requests, such as 1%.")
    ttft_p95: RatioOrDuration | None = Field(
        default=None,
        alias="ttftP95",
        description="Limit for the 95th percentile of the time to first token: a multiple of the old revision's, such as "
        "2x, or a duration.",
    )


class CanarySpec(Model):
    """Traffic to a new revision in steps."""

    steps: Annotated[tuple[CanaryStep, ...], Field(min_length=1, max_length=16)] = Field(description="The steps, in order.")
    abort_on: AbortOn | None = Field(default=None, description="Limits that end the canary and roll back.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.steps.map(step, step.weight).isSorted()",
            "canary: weights of steps must not fall",
            lambda c: [step.weight for step in c.steps] == sorted(step.weight for step in c.steps),
            "steps",
        ),
    )


class RolloutSpec(Model):
    """How a new revision takes over."""

    strategy: Literal["Auto", "Surge", "Replace"] = Field(
        default="Auto",
        description="Surge: new replicas start before old ones drain. Replace: old ones drain first. Auto: chosen by free capacity.",
    )
    canary: CanarySpec | None = Field(default=None, description="Traffic to a new revision in steps.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.strategy != 'Replace' || !has(self.canary)",
            "rollout: canary needs strategy Auto or Surge",
            lambda r: r.strategy != "Replace" or r.canary is None,
            "canary",
        ),
    )


class DrainSpec(Model):
    """How a replica is removed."""

    timeout: Duration = Field(default="30s", description="How long requests may go on after the operator orders a replica to drain.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "duration(self.timeout) <= duration('1h')",
            "drain.timeout must be at most 1h",
            lambda d: parse_duration(d.timeout) <= 3600,
            "timeout",
        ),
    )


class HealthSpec(Model):
    """When a replica counts as unhealthy. It then gets no new requests and is replaced."""

    progress_timeout: Duration = Field(default="120s", description="A step that makes no progress for this long is a hang, 1s to 1h.")
    deep_probe_every: Duration = Field(
        default="30s", description="How often a replica computes a token whose value is known (deep check), 1s to 1h."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "duration(self.progressTimeout) >= duration('1s') && duration(self.progressTimeout) <= duration('1h')",
            "health.progressTimeout must be 1s to 1h",
            lambda h: 1 <= parse_duration(h.progress_timeout) <= 3600,
            "progressTimeout",
        ),
        Rule(
            "duration(self.deepProbeEvery) >= duration('1s') && duration(self.deepProbeEvery) <= duration('1h')",
            "health.deepProbeEvery must be 1s to 1h",
            lambda h: 1 <= parse_duration(h.deep_probe_every) <= 3600,
            "deepProbeEvery",
        ),
    )


class HoldSpec(Model):
    """Requests that wait at the gateway for a replica."""

    timeout: Duration | None = Field(default=None, description="Longest wait, such as 10m; the gateway's own limit if absent.")
    max_requests: Annotated[int, Field(ge=0, le=100_000)] | None = Field(
        default=None, description="Most requests that wait in each gateway; the gateway's own limit if absent. 0: no request waits."
    )


class OverflowSpec(Model):
    """Where requests go if this service cannot take them in time. `service` is not acted on yet."""

    service: DnsName | None = Field(default=None, description="Another InferenceService of this namespace, which answers instead.")
    target: DnsName | None = Field(
        default=None, description="An OpenAI-compatible API outside of the cluster: one of gateway.overflow.targets in the chart's values."
    )
    model: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = Field(
        default=None, description="The model to ask for there; the target's own if absent."
    )
    after: Duration = Field(default="10s", description="A request goes there once it was held for this long, 0s to 1h.")
    queue_depth: int = Field(
        default=16, ge=0, le=10_000, description="Requests go there at once if this number per replica is held in a gateway."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.service) != has(self.target)",
            "overflow: name one of service and target",
            lambda o: (o.service is None) != (o.target is None),
        ),
        Rule(
            "duration(self.after) <= duration('1h')",
            "overflow.after must be at most 1h",
            lambda o: parse_duration(o.after) <= 3600,
            "after",
        ),
    )


class RoutingSpec(Model):
    """How the gateway picks a replica, and what it does if none has room."""

    policy: Literal["PrefixAware", "LeastLoad"] = Field(
        default="PrefixAware",
        description="PrefixAware: the replica that has the conversation or the prompt's beginning, unless it is overloaded. "
        "LeastLoad: the replica with the fewest requests.",
    )
    hold: HoldSpec | None = Field(default=None, description="Requests that wait for a replica.")
    overflow: OverflowSpec | None = Field(default=None, description="Where requests go if this service cannot take them in time.")
