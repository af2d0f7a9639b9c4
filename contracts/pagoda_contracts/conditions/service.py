"""Reasons of an InferenceService's Ready, Reconciling, Stalled and Serving. Nouns only; listed by `table`."""

from __future__ import annotations

from typing import Final

from pagoda_contracts.conditions.types import READY, RECONCILING, SERVING, STALLED, Reason

AVAILABLE: Final = Reason("Available", READY, "All replicas of the current revision are ready.", "Nothing.")
SCALED_TO_ZERO: Final = Reason(
    "ScaledToZero",
    READY,
    "The service has no replicas because it should have none: replicas is 0, or it was idle for scaling.idleAfter. "
    "Ready is True if the service has ever served, else Unknown.",
    "Nothing. In mode Auto the next request starts a replica; in mode Manual set spec.replicas.",
)

# On the way to a replica that serves, in this order.
WAITING: Final = Reason(
    "Waiting",
    RECONCILING,
    "A child object with the same name is still being deleted, often one of a deleted service of this name.",
    "Wait. If the object named in the message stays, look at its finalizers.",
)
INSPECTING_MODEL: Final = Reason(
    "InspectingModel",
    RECONCILING,
    "A pod reads the model's config.json. It must be known before devices are chosen, and before the first replica on CPU fetches it.",
    "Wait. If the message says that the pod has no node or no image, fix that. On CPU replicas start 2 min after the pod was made.",
)
WAITING_FOR_CAPACITY: Final = Reason(
    "WaitingForCapacity",
    RECONCILING,
    "Devices that fit exist, and all of them are in use. The pods are made and stay Pending, so that a cluster autoscaler sees them.",
    "Wait, free devices, add nodes, or add a second entry with fallbackAfter to spec.accelerators.",
)
WAITING_FOR_NODES: Final = Reason(
    "WaitingForNodes",
    RECONCILING,
    "No node offers the devices that the entry asks for. The pods are made and stay Pending, so that an autoscaler adds a node.",
    "Wait. If no autoscaler adds such nodes, add them, or change spec.accelerators. The message has what the pods ask for.",
)
CREATING_PODS: Final = Reason(
    "CreatingPods",
    RECONCILING,
    "The Deployment exists and its pods do not yet.",
    "Wait. If the message holds an error of the ReplicaSet, fix what it names: a ResourceQuota, a LimitRange or an admission rule.",
)
SCHEDULING: Final = Reason(
    "Scheduling",
    RECONCILING,
    "A pod has no node yet. The message holds the scheduler's words.",
    "If the message names a cause, fix it: a missing claim, a taint without a toleration, too little CPU or memory.",
)
PULLING_IMAGE: Final = Reason("PullingImage", RECONCILING, "The kubelet pulls the images of a pod and mounts its volumes.", "Wait.")
IMAGE_PULL: Final = Reason(
    "ImagePull",
    RECONCILING,
    "The kubelet cannot pull an image of the pod. It tries again with growing delays.",
    "Correct the image in the ServingProfile, or give the profile a pull secret.",
    warning=True,
)
CONTAINER: Final = Reason(
    "Container",
    RECONCILING,
    "The kubelet cannot start a container of the pod. The message holds the kubelet's words.",
    "Fix what the message names, such as a Secret or a ConfigMap key in the environment that is missing.",
    warning=True,
)
FAILED_MOUNT: Final = Reason(
    "FailedMount",
    RECONCILING,
    "The kubelet cannot mount a volume of the pod, often because a Secret does not exist. The message holds the kubelet's words and, if a "
    "field of the service names the object, the field. The kubelet tries again within 2 min.",
    "Create what the message names, or correct the field.",
    warning=True,
)
FETCHING_MODEL: Final = Reason(
    "FetchingModel",
    RECONCILING,
    "The fetch sidecar downloads the model. If a try failed, the message says why, and the sidecar tries again.",
    "Wait. The log of the container `fetch` shows how far it is.",
)
LOADING_MODEL: Final = Reason(
    "LoadingModel", RECONCILING, "The daemon runs and loads the model into the device.", "Wait. status.readyExpectedAt says how long."
)
NOT_READY: Final = Reason(
    "NotReady",
    RECONCILING,
    "A replica was Ready and is not any more, and its container still runs. Its node may be silent, or its daemon may be stuck.",
    "Look at the pod's node with `kubectl get nodes` and at the pod's events with `kubectl describe pod POD`.",
    warning=True,
)
RESTARTING: Final = Reason(
    "Restarting",
    RECONCILING,
    "A container of a replica ended with an error for the first time, and the kubelet starts it again at once.",
    "Wait. If it ends again, the reason becomes CrashLooping.",
    warning=True,
)
CRASH_LOOPING: Final = Reason(
    "CrashLooping",
    RECONCILING,
    "A container of a replica ended with an error more than once, and the kubelet starts it again with growing delays.",
    "Read the exit code and the words in the message, then `kubectl logs POD --previous`.",
    warning=True,
)
FORBIDDEN: Final = Reason(
    "Forbidden",
    RECONCILING,
    "The API server refused a write of the operator: RBAC, a ResourceQuota or an admission rule. The operator tries again.",
    "Grant what the message names, or change the quota or the admission rule.",
    warning=True,
)

# The service serves and something is under way.
ROLLING_OUT: Final = Reason(
    "RollingOut",
    RECONCILING,
    "A new revision replaces an old one: the new one's replicas start, or the old one's replicas drain.",
    "Wait. The message names the replicas that are waited for.",
)
CANARY: Final = Reason(
    "Canary",
    RECONCILING,
    "A new revision serves its share of the requests and is compared with the old one.",
    "Wait until the steps in spec.rollout.canary have passed.",
)
DRAINING: Final = Reason(
    "Draining",
    RECONCILING,
    "Replicas that are no longer needed finish their requests.",
    "Wait. A drain ends after spec.drain.timeout at the latest.",
)
REMOVING: Final = Reason(
    "Removing",
    RECONCILING,
    "Replicas that are no longer needed are removed. They never served, or they answer no more, so nothing is drained.",
    "Wait.",
)

# Only a person ends these.
INVALID_SPEC: Final = Reason(
    "InvalidSpec",
    STALLED,
    "The spec cannot be used: a field has a value that is not accepted, or the API server refuses a child object made from it.",
    "Correct the field that the message names. `pagoda validate FILE` finds most faults before you apply.",
    person_only=True,
)
INVALID_PROFILE: Final = Reason(
    "InvalidProfile",
    STALLED,
    "The ServingProfile cannot be used for this service.",
    "Correct the profile's field that the message names, or choose another profile in spec.profileRef.",
    person_only=True,
)
PROFILE_NOT_FOUND: Final = Reason(
    "ProfileNotFound",
    STALLED,
    "The ServingProfile that spec.profileRef names does not exist.",
    "Create the profile, or name one that exists: `kubectl get servingprofiles`.",
    person_only=True,
)
POD_TEMPLATE_FORBIDDEN: Final = Reason(
    "PodTemplateForbidden",
    STALLED,
    "spec.podTemplate sets a path that the profile does not allow, or that the operator sets itself.",
    "Remove the path from spec.podTemplate, or ask the administrator to add it to spec.allow of the profile.",
    person_only=True,
)
MODEL_REJECTED: Final = Reason(
    "ModelRejected",
    STALLED,
    "The model cannot be fetched, read or run, and another try would end in the same way.",
    "Correct spec.model, its credential or spec.engine. The message says what is wrong. If it says that devices are given back, no replica "
    "runs until the spec changes or you delete the Deployment that it names.",
    person_only=True,
)
NAME_CONFLICT: Final = Reason(
    "NameConflict",
    STALLED,
    "Another service holds a served name of this one. The message names the holder.",
    "Change spec.model.servedNames or the name of this service. If the name becomes free, the operator goes on by itself.",
    person_only=True,
)
NAME_RESERVED: Final = Reason(
    "NameReserved",
    STALLED,
    "The administrator reserved a served name of this service for other namespaces. The message names them.",
    "Change spec.model.servedNames, or ask the administrator to add this namespace to reservedNames of the installation.",
    person_only=True,
)
OBJECT_EXISTS: Final = Reason(
    "ObjectExists",
    STALLED,
    "An object that does not belong to this service has the name of one that the service needs. The message names it.",
    "Remove that object or rename this service. If the name becomes free, the operator goes on by itself.",
    person_only=True,
)
NO_ACCELERATOR: Final = Reason(
    "NoAccelerator",
    STALLED,
    "No entry of spec.accelerators can ever run on the nodes that exist or existed within a month.",
    "Read why for each entry in status.placement.rejected, then change spec.accelerators or add such nodes.",
    person_only=True,
)
NO_NODES_CAME: Final = Reason(
    "NoNodesCame",
    STALLED,
    "No node with the devices that the entry asks for came within the profile's nodeDeadline. The pods are still Pending.",
    "Look at the autoscaler's events and limits, and at the provider's quota. If a node comes, the service goes on by itself.",
    person_only=True,
)
QUOTA_EXCEEDED: Final = Reason(
    "QuotaExceeded",
    STALLED,
    "A TenantQuota allows fewer replicas than the service asks for. It serves with those that it has.",
    "Lower spec.replicas, raise the quota, or free devices of the same tenant.",
    person_only=True,
)
ROLLED_BACK: Final = Reason(
    "RolledBack",
    STALLED,
    "The new revision failed or its canary did worse, and the old revision serves again.",
    "Read status.rollout.reason, then change the spec. The same revision is not tried again.",
    person_only=True,
)
REVISION_LOST: Final = Reason(
    "RevisionLost",
    STALLED,
    "The ControllerRevision and the ConfigMap of a running revision were deleted, so the operator does not know what the revision is.",
    "Delete the Deployment that the message names. The operator makes all of it again.",
    person_only=True,
)

# Of conditions that are False.
SETTLED: Final = Reason("Settled", RECONCILING, "Reconciling is False: nothing is under way.", "Nothing.")
NOT_STALLED: Final = Reason("NotStalled", STALLED, "Stalled is False: nothing waits for a person.", "Nothing.")

# Of Serving. NotServedYet is also the memory of the operator: a service that never served is not Ready while it is asleep.
TAKES_REQUESTS: Final = Reason(
    "TakesRequests",
    SERVING,
    "At least one replica takes requests.",
    "Nothing. If the message says that gateways have none of the replicas, look at the service's Service and EndpointSlices.",
)
NOT_SERVED_YET: Final = Reason(
    "NotServedYet",
    SERVING,
    "Serving is False: no replica has taken requests since the service was created.",
    "Read the reason of Ready. It says what the first replica waits for.",
)
NO_REPLICA: Final = Reason(
    "NoReplica",
    SERVING,
    "Serving is False: replicas took requests before, and none does now. The service is asleep, or it lost all of them.",
    "Nothing if the reason of Ready is ScaledToZero. Else read it: it says what the next replica waits for.",
)
