//! Writing tasks down: one, while the caller waits for a first try, or thousands.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt as _};
use redrive::{CallError, Cause, Enqueued, IntoTask, NewTask, OnDuplicate, Persist, Policy, PolicyPatch, TaskId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::{Answer as HttpAnswer, CallFailed, HttpCall, HttpRequest};

use super::App;
use super::auth::{Caller, Operator};
use super::input::{Json, understood};
use super::own;
use super::problem::{Answer, Problem};
use super::shapes::{HttpRequestShape, OnDuplicateShape, PolicyShape};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(enqueue)).routes(routes!(enqueue_many))
}

/// How long a key of an HTTP task outlives it: a client that repeats a request whose answer it missed does not deliver twice.
const DEDUP_FOR: Duration = Duration::from_secs(24 * 3600);
/// Lines of one request.
const MOST_LINES: usize = 10_000;
/// Lines that are on their way to the database at once; they share its commits.
const AT_ONCE: usize = 1_000;

/// A task to be written down: `http`, or `method` and `params`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewTask)]
struct New {
    /// A request to be delivered until it succeeds.
    #[schema(value_type = Option<HttpRequestShape>)]
    http: Option<HttpRequest>,
    /// What is to be called, by a node that handles it. Not `http`, `http.…`, `saga.http` or `redrive.…`, which are redrive's own.
    #[schema(max_length = 500)]
    method: Option<String>,
    #[schema(value_type = Option<Value>)]
    params: Option<Value>,
    /// What makes two of them the same: while such a task lives (of HTTP tasks: for a day) its id is the answer.
    #[schema(max_length = 255)]
    key: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<OnDuplicateShape>)]
    on_duplicate: OnDuplicate,
    #[schema(max_length = 50)]
    business_type: Option<String>,
    #[schema(max_length = 100)]
    business_id: Option<String>,
    /// Fields that are to be otherwise than the method's or target's.
    #[schema(value_type = Option<PolicyShape>)]
    policy: Option<PolicyPatch>,
    /// Not before this time has passed: `"5m"`.
    #[serde(default, deserialize_with = "duration")]
    #[schema(value_type = Option<String>)]
    delay: Option<Duration>,
    /// Greater ones first, among what is due.
    #[serde(default)]
    priority: i16,
    /// Try a request now and answer with what came of it; with a `key`, unless there is such a task already.
    #[serde(default)]
    wait: bool,
}

/// A duration as people write it: `"5m"`.
fn duration<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(d)?;
    text.map(|text| humantime::parse_duration(&text)).transpose().map_err(serde::de::Error::custom)
}

impl New {
    fn check_callbacks(&self) -> redrive::Result<()> {
        self.policy.as_ref().map_or(Ok(()), |patch| own::check_callbacks(&patch.over(Policy::default()), None))
    }

    fn into_task(mut self, app: &App, by: &By<'_>) -> Answer<NewTask> {
        self.check_callbacks()?;
        let defaults = app.engine()?.defaults();
        let task = match (self.http.take(), self.method.take()) {
            (Some(request), None) if self.params.is_none() => self.call(app, request, by)?.into_new_task(&defaults)?,
            (None, Some(method)) => {
                own::check_method(&method)?;
                let policy = self.policy.take().unwrap_or_default().over((*defaults.policy_for(&method)).clone());
                let task = NewTask::new(method, &self.params.take().unwrap_or_default())?.policy(policy);
                by.sign(self.described(task)?)
            }
            _ => return Err(redrive::Error::invalid("http", "either http is given, or method and its params").into()),
        };
        let task = task.on_duplicate(self.on_duplicate);
        Ok(self.delay.into_iter().fold(task, NewTask::delay))
    }

    /// The request as a call, be it enqueued or tried first.
    fn call(&mut self, app: &App, request: HttpRequest, by: &By<'_>) -> Answer<HttpCall> {
        let (call, business) = both(HttpCall::new(app.delivery()?, request), self.business())?;
        let call = call.policy(self.policy.take().unwrap_or_default());
        let mut call = call.priority(self.priority).created_by(by.name);
        if let Some(key) = self.key.take() {
            call = call.key(key).dedup_for(DEDUP_FOR);
        }
        if let Some((kind, id)) = business {
            call = call.business(kind, id);
        }
        Ok(match by.traceparent {
            Some(parent) => call.traceparent(parent),
            None => call,
        })
    }

    /// A task that is no request.
    fn described(&mut self, task: NewTask) -> redrive::Result<NewTask> {
        let mut task = task.priority(self.priority);
        if let Some(key) = self.key.take() {
            task = task.key(key);
        }
        Ok(match self.business()? {
            Some((kind, id)) => task.business(kind, id),
            None => task,
        })
    }

    fn business(&mut self) -> redrive::Result<Option<(String, String)>> {
        match (self.business_type.take(), self.business_id.take()) {
            (Some(kind), Some(id)) => Ok(Some((kind, id))),
            (None, None) => Ok(None),
            _ => Err(half_a_business()),
        }
    }
}

/// Both, or all that is wrong with either.
fn both<A, B>(a: redrive::Result<A>, b: redrive::Result<B>) -> redrive::Result<(A, B)> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(redrive::Error::Invalid(mut all)), Err(redrive::Error::Invalid(more))) => {
            more.iter().for_each(|(field, problem)| all.add(field, problem));
            Err(redrive::Error::Invalid(all))
        }
        (Err(e), _) | (_, Err(e)) => Err(e),
    }
}

fn half_a_business() -> redrive::Error {
    redrive::Error::invalid("business_id", "is given together with business_type, or neither is")
}

/// Who enqueues, and in the course of what.
struct By<'r> {
    name: &'r str,
    /// W3C Trace Context: goes with the task to where it is delivered.
    traceparent: Option<&'r str>,
}

impl<'r> By<'r> {
    fn new(who: &'r Caller, headers: &'r HeaderMap) -> Self {
        let traceparent = headers.get("traceparent").and_then(|value| value.to_str().ok());
        Self { name: &who.name, traceparent: traceparent.filter(|text| is_traceparent(text)) }
    }

    fn sign(&self, task: NewTask) -> NewTask {
        let task = task.created_by(self.name);
        match self.traceparent {
            Some(parent) => task.traceparent(parent),
            None => task,
        }
    }
}

/// `00-`, 32 hex digits, `-`, 16, `-`, 2. What is not one is ignored, as its specification says.
fn is_traceparent(text: &str) -> bool {
    let hex = |part: &str, n| part.len() == n && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    match text.split('-').collect::<Vec<_>>().as_slice() {
        [version, trace, parent, flags] => {
            hex(version, 2) && hex(trace, 32) && hex(parent, 16) && hex(flags, 2) && *version != "ff"
        }
        _ => false,
    }
}

/// What came of an enqueue.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = Enqueued)]
struct Answered {
    /// With `wait` only, of what was tried: `done`, `deferred` (written down, will be tried again), `rejected` (no retry mends it: with a
    /// key it is a dead letter, without one it is not written down) or `exhausted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    /// The task's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    id: Option<TaskId>,
    /// A task with this key lives already, or was done a while ago: this is its id, and nothing was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    existed: Option<bool>,
    /// With `wait`: what the target answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    result: Option<HttpAnswer>,
    /// With `wait`: why it is not done; or, if it is, what could not be written down of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Of a line of many: why it is not written down.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

impl From<Enqueued> for Answered {
    fn from(enqueued: Enqueued) -> Self {
        Self { id: Some(enqueued.id), existed: Some(enqueued.existed), ..Self::default() }
    }
}

/// Enqueue a task
///
/// It is written down durably before this answers. With `wait` a request is tried first: what a retry can mend is *deferred*.
#[utoipa::path(post, path = "/tasks", tag = "tasks", request_body = New, responses(
    (status = 201, body = Answered, description = "It is written down."),
    (status = 200, body = Answered, description = "It was there already; or, with `wait`, tried."),
    (status = 202, body = Answered, description = "With `wait`: deferred."),
))]
async fn enqueue(
    State(app): State<App>,
    Operator(who): Operator,
    headers: HeaderMap,
    Json(new): Json<New>,
) -> Answer<(StatusCode, axum::Json<Answered>)> {
    let by = By::new(&who, &headers);
    let (status, answer) = match new.wait {
        true => try_now(&app, new, &by).await?,
        false => write_down(&app, new, &by).await?,
    };
    Ok((status, axum::Json(answer)))
}

async fn write_down(app: &App, new: New, by: &By<'_>) -> Answer<(StatusCode, Answered)> {
    let enqueued = app.engine()?.enqueue(new.into_task(app, by)?).await?;
    Ok((if enqueued.existed { StatusCode::OK } else { StatusCode::CREATED }, enqueued.into()))
}

/// One try while the caller waits. What a retry can mend is a task then; what none can is the caller's to know, and nothing is
/// written down. With a key it is an enqueue whose first try is waited for: written down before it is tried, so that one that
/// lives, or was done a while ago, is the answer and nothing is sent.
async fn try_now(app: &App, mut new: New, by: &By<'_>) -> Answer<(StatusCode, Answered)> {
    new.check_callbacks()?;
    let is_plain = new.on_duplicate == OnDuplicate::default() && new.params.is_none();
    let (Some(request), None, None, true) = (new.http.take(), &new.method, new.delay, is_plain) else {
        let problem = "only a request (http) can be tried at once, without delay, params or on_duplicate";
        return Err(redrive::Error::invalid("wait", problem).into());
    };
    // What the settings say of `persist` is for programs: here the answer promises what is written down.
    let persist = if new.key.is_some() { Persist::Always } else { Persist::RetryOnly };
    tried(app.engine()?.call(new.call(app, request, by)?.persist(persist)).await)
}

fn tried(outcome: Result<HttpAnswer, CallError<HttpAnswer, CallFailed>>) -> Answer<(StatusCode, Answered)> {
    let said = |state, e: &CallError<HttpAnswer, CallFailed>| {
        let error = e.cause().map_or_else(|| "its first try was cut off".into(), why);
        Answered { state: Some(state), error: Some(error), ..Answered::default() }
    };
    Ok(match outcome {
        Ok(answer) => (StatusCode::OK, Answered { state: Some("done"), result: Some(answer), ..Answered::default() }),
        Err(CallError::Deferred { task_id, existed: true, .. }) => {
            (StatusCode::OK, Enqueued { id: task_id, existed: true }.into())
        }
        Err(ref e @ CallError::Deferred { task_id, .. }) => {
            let answer = Answered { id: Some(task_id), existed: Some(false), ..said("deferred", e) };
            (StatusCode::ACCEPTED, answer)
        }
        Err(ref e @ CallError::Exhausted { task_id, .. }) => {
            (StatusCode::OK, Answered { id: task_id, ..said("exhausted", e) })
        }
        Err(CallError::NotRecorded { cause: Some(Cause::Untold(answer)), source }) => {
            (StatusCode::OK, untold(answer, &source))
        }
        Err(CallError::NotRecorded { cause, source }) => return Err(unrecorded(cause.as_ref(), source)),
        Err(e) => (StatusCode::OK, said("rejected", &e)),
    })
}

/// What it answered says more than that it was not what was wanted. The state and the id are said beside it.
fn why(cause: &Cause<HttpAnswer, CallFailed>) -> String {
    match cause {
        Cause::Unmet(answer) => answer.unmet(),
        cause => cause.to_string(),
    }
}

/// It is delivered: who is told to try again would deliver it twice.
fn untold(answer: HttpAnswer, source: &redrive::Error) -> Answered {
    let error = format!("it is done, but could not be kept, and its callback, if it has one, not told: {source}");
    Answered { state: Some("done"), result: Some(answer), error: Some(error), ..Answered::default() }
}

/// Nothing is written down: the caller is the only one who can try it again, and knows how it went.
fn unrecorded(cause: Option<&Cause<HttpAnswer, CallFailed>>, source: redrive::Error) -> Problem {
    let mut problem = Problem::from(source);
    if let Some(cause) = cause {
        problem.detail += &format!("; its first try: {}", why(cause));
    }
    problem
}

/// Enqueue thousands of tasks
///
/// Newline-delimited JSON: one task a line, up to 10,000 lines. The answer has a line for each, in the same order: what `POST /tasks`
/// would have answered, or a problem. Lines are independent: one that is refused does not hold up the others.
#[utoipa::path(post, path = "/tasks/bulk", tag = "tasks",
    request_body(content = New, content_type = "application/x-ndjson"),
    responses((status = 200, body = Answered, content_type = "application/x-ndjson", description = "A line for each line.")))]
async fn enqueue_many(
    State(app): State<App>,
    Operator(who): Operator,
    headers: HeaderMap,
    Lines(lines): Lines,
) -> Answer<Response> {
    let by = By::new(&who, &headers);
    let answers: Vec<_> = lines.iter().map(|line| enqueue_line(&app, line, &by)).collect();
    let answers: Vec<String> = stream::iter(answers).buffered(AT_ONCE).collect().await;
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], answers.concat()).into_response())
}

async fn enqueue_line(app: &App, line: &str, by: &By<'_>) -> String {
    let done = async {
        let new: New = understood("the line", line.as_bytes())?;
        if new.wait {
            return Err(redrive::Error::invalid("wait", "is not for many at once").into());
        }
        write_down(app, new, by).await.map(|(_, answer)| answer)
    };
    let answer = done.await.unwrap_or_else(|problem| Answered { problem: Some(problem), ..Answered::default() });
    serde_json::to_string(&answer).unwrap_or_default() + "\n" // plain values cannot fail
}

/// The lines of a body; empty ones do not count.
struct Lines(Vec<String>);

impl<S: Send + Sync> axum::extract::FromRequest<S> for Lines {
    type Rejection = Problem;

    async fn from_request(request: axum::extract::Request, state: &S) -> Result<Self, Problem> {
        let bytes = Bytes::from_request(request, state).await.map_err(|e| super::problem::unreadable(&e))?;
        let text = std::str::from_utf8(&bytes).map_err(|e| {
            Problem::new(StatusCode::BAD_REQUEST, "not_understood", format!("the body is not UTF-8: {e}"))
        })?;
        let lines: Vec<String> = text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
        if lines.len() > MOST_LINES {
            let detail = format!("{} lines; send at most {MOST_LINES} at a time", lines.len());
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_many_lines", detail));
        }
        Ok(Self(lines))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwritten(cause: Option<Cause<HttpAnswer, CallFailed>>) -> Answer<(StatusCode, Answered)> {
        let why = "it has stopped; nothing was written".into();
        let source = redrive::Error::Unavailable { doing: "enqueue on", id: "this engine".into(), why };
        tried(Err(CallError::NotRecorded { cause, source }))
    }

    #[test]
    fn what_was_delivered_is_done_whether_it_could_be_written_down_or_not() {
        let answer = HttpAnswer { status: 201, ..HttpAnswer::default() };
        let (status, said) = unwritten(Some(Cause::Untold(answer.clone()))).unwrap();
        assert_eq!((status, said.state, said.result), (StatusCode::OK, Some("done"), Some(answer)));
        assert!(said.error.is_some_and(|error| error.starts_with("it is done") && error.contains("it has stopped")));
    }

    #[test]
    fn what_could_not_be_written_down_says_how_it_was_tried() {
        let timeout = unwritten(Some(Cause::Timeout(Duration::from_secs(3)))).unwrap_err();
        assert_eq!(timeout.status, 503);
        assert!(
            timeout.detail.ends_with("nothing was written; its first try: no result within 3s"),
            "{}",
            timeout.detail
        );
        assert!(unwritten(None).unwrap_err().detail.ends_with("nothing was written"), "it was not tried");
    }

    #[test]
    fn what_is_no_trace_context_is_ignored() {
        assert!(is_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
        for wrong in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        ] {
            assert!(!is_traceparent(wrong), "{wrong}");
        }
    }
}
