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
    /// If given, only errors of these kinds are tried again.
    retry_for: Option<Vec<String>>,
    /// Errors of these kinds are not.
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
    generation: i64,
    #[schema(format = DateTime)]
    changed_at: String,
    #[schema(format = DateTime)]
    open_until: Option<String>,
    #[schema(format = DateTime)]
    failing_since: Option<String>,
    /// How often it has opened in a row.
    opens: u32,
    probes_given: u32,
    probes_passed: u32,
    why: Option<String>,
}
