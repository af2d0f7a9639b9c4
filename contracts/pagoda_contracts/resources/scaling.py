"""How many replicas: `spec.scaling` of an InferenceService (docs/scaling.md says what comes of it)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, StringConstraints

from pagoda_contracts.resources.meta import DnsName, Model, Rule
from pagoda_contracts.units import DURATION_PATTERN, Duration

MAX_REPLICAS = 1024
_CRON_FIELD = r"[0-9*/,A-Za-z-]{1,40}"
Cron = Annotated[str, StringConstraints(max_length=204, pattern=rf"^{_CRON_FIELD}( {_CRON_FIELD}){{4}}$")]
TimeZone = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_+/-]*$")]
HORIZON_PATTERN: Final = rf"^startupTime$|{DURATION_PATTERN}"
Horizon = Annotated[str, StringConstraints(max_length=48, pattern=HORIZON_PATTERN)]
Replicas = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]


class ScalingTargets(Model):
    """What a replica should bear; each target asks for a number of replicas, the largest wins."""

    queue_depth: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="Waiting requests that each replica may have."
    )
    kv_utilization: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="KV blocks in use over all blocks of a replica, above 0 up to 1; 0.9 if absent."
    )
    ttft_p95: Duration | None = Field(
        default=None, alias="ttftP95", description="95th percentile of the time to first token, a duration such as 800ms."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.kvUtilization) || self.kvUtilization > 0.0",
            "targets.kvUtilization must be above 0 and at most 1",
            lambda t: t.kv_utilization is None or t.kv_utilization > 0,
            "kvUtilization",
        ),
    )


class ScalingPolicy(Model):
    """A limit on the speed of scaling, as in HorizontalPodAutoscaler v2."""

    type: Literal["Pods", "Percent"] = Field(description="What `value` counts: Pods or Percent of the present replicas.")
    value: int = Field(ge=1, le=10_000, description="Change allowed within the period.")
    period_seconds: int = Field(ge=1, le=1800, description="Length of the period in seconds.")


class ScalingRules(Model):
    """One direction, as in HorizontalPodAutoscaler v2."""

    stabilization_window_seconds: Annotated[int, Field(ge=0, le=3600)] | None = Field(
        default=None,
        description="Seconds of past recommendations, of which the safest counts. If absent: 0 for scaling up, 300 for scaling down.",
    )
    select_policy: Literal["Max", "Min", "Disabled"] = Field(default="Max", description="Which policy counts: Max, Min or Disabled.")
    policies: Annotated[tuple[ScalingPolicy, ...], Field(max_length=8)] = Field(
        default=(), description="Limits on the speed; none if absent."
    )


class ScalingBehavior(Model):
    """How fast up and down, in the shape of HorizontalPodAutoscaler v2."""

    scale_up: ScalingRules | None = Field(default=None, description="Limits for scaling up.")
    scale_down: ScalingRules | None = Field(default=None, description="Limits for scaling down.")


class Schedule(Model):
    """Other values of min and max at certain times."""

    name: DnsName = Field(description="The schedule's name, which decisions quote.")
    start: Cron = Field(description="When it begins: five cron fields, such as 0 8 * * 1-5.")
    duration: Duration = Field(description="How long it lasts, such as 10h.")
    time_zone: TimeZone = Field(default="Etc/UTC", description="IANA time zone of `start`, such as Europe/Berlin.")
    min: Replicas = Field(description="Fewest replicas during this time.")
    max: Replicas | None = Field(default=None, description="Most replicas during this time; scaling.max if absent.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.max) || self.min <= self.max",
            "schedules: min must be at most max",
            lambda s: s.max is None or s.min <= s.max,
            "min",
        ),
    )


class Predictive(Model):
    """Scaling ahead of demand."""

    enabled: bool = Field(default=False, description="Whether the same hour of previous days and the trend count.")
    horizon: Horizon = Field(
        default="startupTime", description="How far to look ahead: startupTime (the time that starts took), or a duration such as 5m."
    )


class ScalingSpec(Model):
    """Who decides how many replicas, and by what."""

    mode: Literal["Auto", "External", "Manual"] = Field(
        default="Manual",
        description="Auto: the operator; spec.replicas is where it begins and is never written. External: HPA or KEDA through the scale "
        "subresource; at 0 a held request still starts one replica. Manual: a person.",
    )
    min: Replicas = Field(default=1, description="Fewest replicas in Auto; 0 allows scale to zero.")
    max: Replicas | None = Field(default=None, description="Most replicas in Auto.")
    targets: ScalingTargets | None = Field(default=None, description="The load that a replica should have at most.")
    idle_after: Duration | None = Field(
        default=None, description="Scale to zero after this time without requests. Needs min 0. 5m if absent."
    )
    behavior: ScalingBehavior | None = Field(default=None, description="How fast the service scales up and down.")
    schedules: Annotated[tuple[Schedule, ...], Field(max_length=16)] = Field(
        default=(),
        description="Other values of min and max at certain times.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    predictive: Predictive | None = Field(default=None, description="Scaling ahead of demand.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.max) || self.min <= self.max",
            "scaling: min must be at most max",
            lambda s: s.max is None or s.min <= s.max,
            "min",
        ),
        Rule(
            "self.mode != 'Auto' || has(self.max)", "scaling: mode Auto needs max", lambda s: s.mode != "Auto" or s.max is not None, "max"
        ),
        Rule(
            "!has(self.idleAfter) || self.min == 0",
            "scaling: idleAfter needs min 0",
            lambda s: s.idle_after is None or s.min == 0,
            "idleAfter",
        ),
    )
