//! What the API's values look like, where the library's own types cannot say it: for the OpenAPI document alone, none of these is
//! ever made.
#![allow(dead_code, reason = "they are read by the derive")]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// When, how often and for how long a task is tried. Fields that are left out have their defaults: those of the method, of the
/// target, of the settings. Durations are texts as `"5m"`.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Policy)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyShape {
    /// Executions, the first inline one included; `null`: no limit.
    #[schema(minimum = 1)]
    max_attempts: Option<u32>,
    /// No attempt begins later than this after the task was created.
    #[schema(example = "1h")]
    max_duration: Option<String>,
    /// No attempt begins at this moment or later.
    #[schema(format = DateTime)]
    deadline: Option<String>,
    backoff: Option<BackoffShape>,
    jitter: Option<JitterShape>,
    /// An attempt that takes longer has failed.
    #[schema(example = "10s")]
    timeout: Option<String>,
    /// The longest time for which a target that asks for a slower pace (429, or 503 with `Retry-After`) is left alone at once.
    #[schema(example = "5m")]
    max_retry_after: Option<String>,
    /// The longest time for which such answers postpone a task in all.
    #[schema(example = "1day")]
    max_postponed: Option<String>,
    /// If given, only errors of these kinds are tried again.
    #[schema(max_items = 100)]
    retry_for: Option<Vec<String>>,
    /// Errors of these kinds are not.
    #[schema(max_items = 100)]
    no_retry_for: Option<Vec<String>>,
    /// A CEL expression over the result; where it does not hold, the attempt has failed.
    #[schema(example = "status < 300")]
    success_if: Option<String>,
    #[schema(inline)]
    on_exhausted: Option<OnExhaustedShape>,
    notify: Option<NotifyShape>,
    max_crashes: Option<u32>,
    on_success: Option<String>,
    on_final_failure: Option<String>,
    /// Whether it stays in the archive when it has succeeded.
    keep: Option<bool>,
    #[schema(inline)]
    on_crash: Option<OnCrashShape>,
}

/// The wait after a failed attempt.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Backoff)]
#[serde(rename_all = "snake_case")]
pub(super) enum BackoffShape {
    Exponential { initial: Option<String>, factor: Option<f64>, max: Option<String> },
    Linear { initial: Option<String>, max: Option<String> },
    Fixed(String),
    List(Vec<String>),
}

/// How chance spreads the waits.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Jitter)]
#[serde(rename_all = "snake_case")]
pub(super) enum JitterShape {
    None,
    Add(String),
    Full,
    Equal,
    Proportional(f64),
}

/// When people are told, once, that it keeps failing.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Notify)]
#[serde(rename_all = "snake_case")]
pub(super) enum NotifyShape {
    Failures(u32),
    FailingFor(String),
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OnExhaustedShape {
    Dead,
    Escalate,
    Drop,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OnCrashShape {
    Retry,
    Dead,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Status)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum StatusShape {
    Pending,
    Running,
}

/// What happens if a task with this key lives already.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = OnDuplicate)]
#[serde(rename_all = "snake_case")]
pub(super) enum OnDuplicateShape {
    Keep,
    ReplacePolicy,
}

/// A request to be delivered until it succeeds.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = HttpRequest)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpRequestShape {
    #[schema(default = "POST")]
    method: Option<String>,
    /// An address that begins with `https://` or `http://`; with a target a path.
    #[schema(example = "https://example.org/orders")]
    url: String,
    headers: Option<BTreeMap<String, String>>,
    /// The body, if it is text.
    body: Option<String>,
    /// The body in base64, if it is not.
    body_base64: Option<String>,
    /// A target of the settings, to which `url` is a path.
    target: Option<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = LastError)]
pub(super) struct LastErrorShape {
    kind: String,
    message: String,
    #[schema(format = DateTime)]
    at: String,
}

/// An attempt that failed.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Attempt)]
pub(super) struct AttemptShape {
    n: u32,
    #[schema(format = DateTime)]
    at: String,
    kind: String,
    message: String,
    node: Option<i64>,
    /// How many attempts it stands for, if more than one: those that asked for a slower pace are noted together.
    times: Option<u32>,
    /// For how long the task was postponed because its target asked for a slower pace.
    #[schema(example = "30s")]
    waited: Option<String>,
}

/// How many, and how sure that is.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Count)]
pub(super) struct CountShape {
    n: u64,
    #[schema(inline)]
    exactness: ExactnessShape,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ExactnessShape {
    Exact,
    AtLeast,
    Estimate,
}

/// Everything at one look.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Overview)]
pub(super) struct OverviewShape {
    pending: CountShape,
    running: CountShape,
    /// When the oldest attempt that still runs was begun.
    #[schema(format = DateTime)]
    oldest_running: Option<String>,
    dead: CountShape,
    /// Pairs of a reason and a count.
    #[schema(value_type = Vec<Vec<Value>>)]
    dead_by_reason: Vec<(String, CountShape)>,
    methods: Vec<MethodCountShape>,
    archived: CountShape,
}

/// What there is of one method.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = MethodCount)]
pub(super) struct MethodCountShape {
    method: String,
    tasks: CountShape,
    dead: CountShape,
    #[schema(format = DateTime)]
    oldest_due: Option<String>,
    paused: bool,
}

/// What somebody did, or was refused.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Audited)]
pub(super) struct AuditedShape {
    id: String,
    #[schema(format = DateTime)]
    at: String,
    who: String,
    #[schema(example = "dead.redrive")]
    action: String,
    target: String,
    /// `"done"`, or `{"refused": why}`.
    #[schema(value_type = Value)]
    outcome: serde_json::Value,
    #[schema(value_type = Option<Object>)]
    before: Option<serde_json::Value>,
    #[schema(value_type = Option<Object>)]
    after: Option<serde_json::Value>,
    note: Option<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Role)]
#[serde(rename_all = "snake_case")]
pub(super) enum RoleShape {
    Viewer,
    Operator,
    Admin,
}

/// A token, without its secret.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Token)]
pub(super) struct TokenShape {
    id: String,
    name: String,
    role: RoleShape,
    #[schema(format = DateTime)]
    created_at: String,
    created_by: String,
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    #[schema(format = DateTime)]
    last_used_at: Option<String>,
    #[schema(format = DateTime)]
    revoked_at: Option<String>,
    revoked_by: Option<String>,
}

/// A field that somebody has set while nodes run.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = SetField)]
pub(super) struct SetFieldShape {
    path: String,
    #[schema(value_type = Value)]
    value: serde_json::Value,
    #[schema(format = DateTime)]
    since: String,
    by: Option<String>,
}

/// Why a task is dead.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = DeadReason)]
#[serde(rename_all = "snake_case")]
pub(super) enum DeadReasonShape {
    Exhausted,
    Expired,
    Rejected,
    FailedByHand,
    Crashed,
    Undecodable,
    Postponed,
}

/// How a task ended.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = EndedAs)]
#[serde(rename_all = "snake_case")]
pub(super) enum EndedAsShape {
    Done,
    Cancelled,
    Rejected,
    Dropped,
    Resolved,
    Discarded,
    Redriven,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = GateState)]
#[serde(rename_all = "snake_case")]
pub(super) enum GateStateShape {
    Closed,
    Open,
    HalfOpen,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Hold)]
#[serde(rename_all = "snake_case")]
pub(super) enum HoldShape {
    Open,
    Closed,
}

/// A circuit breaker that all nodes share: it holds the tasks of a method or host back while that is down.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Gate)]
pub(super) struct GateShape {
    lane: i32,
    /// The method or the host.
    name: String,
    state: GateStateShape,
    /// What a person has decided; a target that has failed for days is held open, too.
    held: Option<HoldShape>,
    /// Grows with each change and each round of probes.
    generation: i64,
    #[schema(format = DateTime)]
    changed_at: String,
    /// The end of its wait: it is probed from then on.
    #[schema(format = DateTime)]
    open_until: Option<String>,
    #[schema(format = DateTime)]
    failing_since: Option<String>,
    /// Number of waits in a row without a successful probe.
    opens: u32,
    /// Size of this round of probes; of the next one, while it is open.
    probes_allowed: u32,
    /// Probes of this round that were given away; of the last one, while it is open.
    probes_given: u32,
    probes_passed: u32,
    probes_failed: u32,
    /// A probe that is under way counts as lost from then on.
    #[schema(format = DateTime)]
    probes_until: String,
    why: Option<String>,
}

/// How a saga stands.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = SagaState)]
#[serde(rename_all = "snake_case")]
pub(super) enum SagaStateShape {
    Running,
    Waiting,
    Compensating,
    Stuck,
    Succeeded,
    Compensated,
    CompensatedWithGaps,
    Failed,
    Killed,
}

/// A saga whose steps are HTTP requests.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Saga)]
#[serde(deny_unknown_fields)]
pub(super) struct SagaShape {
    /// What kind of flow it is.
    #[schema(example = "book-trip", min_length = 1, max_length = 100)]
    name: String,
    #[schema(min_items = 1, max_items = 100)]
    steps: Vec<SagaStepShape>,
    #[schema(inline)]
    compensation: Option<CompensationShape>,
    /// One request that undoes the whole, instead of each step's own.
    compensate_with: Option<SagaRequestShape>,
    #[schema(inline)]
    on_undo_failure: Option<OnUndoFailureShape>,
    /// Past this time since its start it is undone, unless it is past its pivot.
    #[schema(example = "1h")]
    deadline: Option<String>,
}

/// In which order steps are undone: in the reverse of their start, all at once, or each when all after it are.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum CompensationShape {
    Reverse,
    Parallel,
    Graph,
}

/// When an undo has failed for good: the others wait for a person, too, or go on.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OnUndoFailureShape {
    Halt,
    Continue,
}

/// A step of a saga.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = SagaStep)]
#[serde(deny_unknown_fields)]
pub(super) struct SagaStepShape {
    #[schema(example = "hotel", min_length = 1, max_length = 90)]
    name: String,
    /// The steps that must be done before it. Default: none, so it starts with the saga.
    after: Option<Vec<String>>,
    /// The request that is made. Steps that only wait have none.
    r#do: Option<SagaRequestShape>,
    /// The request that undoes it; or `"none"`: there is nothing to undo; or `"irreversible"`.
    undo: Option<SagaUndoShape>,
    /// The request that makes a reservation good.
    confirm: Option<SagaRequestShape>,
    /// What it does. Default: a call.
    kind: Option<SagaStepKindShape>,
    /// The point of no return: once it is done the saga only goes forward.
    pivot: Option<bool>,
    /// An irreversible step may stand before the pivot.
    allow_irreversible: Option<bool>,
    /// It is undone before those that do not say so.
    undo_first: Option<bool>,
    policy: Option<PolicyShape>,
    undo_policy: Option<PolicyShape>,
    /// No attempt begins later than this after it was started.
    #[schema(example = "10m")]
    deadline: Option<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = SagaUndo)]
#[serde(untagged)]
enum SagaUndoShape {
    Word(UndoWordShape),
    Request(SagaRequestShape),
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum UndoWordShape {
    None,
    Irreversible,
}

/// What a step does, if it is no plain call.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = SagaStepKind)]
#[serde(rename_all = "snake_case")]
enum SagaStepKindShape {
    Call,
    /// Reserves something for a time; it is confirmed once nothing can go wrong any more, or cancelled by its undo.
    Reserve {
        ttl: String,
        when_up: Option<WhenUpShape>,
    },
    Sleep {
        time: String,
    },
    /// Waits to be told; what it is told is its output.
    WaitFor {
        signal: String,
        timeout: Option<String>,
        when_up: Option<WhenUpShape>,
    },
}

/// What happens when the time of a wait or of a reservation is up.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = WhenUp)]
#[serde(rename_all = "snake_case")]
enum WhenUpShape {
    Compensate,
    /// This step and all after it are undone, and begin anew.
    BackTo(String),
}

/// A request in which texts may have templates: `{{input.…}}`, `{{steps.NAME.body.…}}`, `{{key}}`; in undo and confirm also
/// `{{self.body.…}}` and `{{run_key}}`; `{{saga.id}}`. Of several with `|` between them the first that there is counts.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = SagaRequest)]
#[serde(deny_unknown_fields)]
pub(super) struct SagaRequestShape {
    /// Default: POST.
    method: Option<String>,
    /// A whole address, or a path if there is a target.
    #[schema(example = "https://hotels.example.org/bookings")]
    url: String,
    target: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    /// A text is sent as it is, everything else as JSON.
    #[schema(value_type = Option<serde_json::Value>)]
    body: Option<serde_json::Value>,
}
