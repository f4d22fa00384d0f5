//! What people do to many at once. The answer is a stream of lines, one after each batch, so that whoever asked sees how far it is;
//! when they hang up it stops after the batch under way, and what is done is done and in the audit. A server that stops does not
//! wait for the rest either: it says so, and the same filter goes on with it later.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use redrive::store::{Bulk, BulkResult, BulkRun, Count, DeadAction, Step, TaskAction, Which};
use redrive::{Policy, TaskId, Timestamp, unbroken};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Operator;
use super::filter::{OfDead, OfTasks};
use super::input::{Json, LONGEST_NOTE, noted};
use super::own;
use super::problem::{Answer, Problem};
use super::shapes::{CountShape, PolicyShape};
use super::{App, UNBUFFERED};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(bulk_tasks)).routes(routes!(bulk_dead))
}

/// Ids of one request.
const MOST_IDS: usize = 10_000;
/// A passing failure of the database is waited for so often.
const MOST_FAILURES: u32 = 10;

/// What is to be done to many tasks: to `ids`, or to all that `filter` finds.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BulkTasks {
    #[schema(inline)]
    action: OnTasks,
    #[schema(value_type = Option<Vec<String>>, max_items = 10000)]
    ids: Option<Vec<TaskId>>,
    filter: Option<OfTasks>,
    /// Only say how many it would be done to.
    #[serde(default)]
    dry_run: bool,
    /// How many in a second, at the most.
    #[schema(minimum = 1)]
    per_second: Option<u32>,
    /// For the audit; at most 4096 bytes.
    #[schema(max_length = 4096)]
    note: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OnTasks {
    Cancel,
    Fail,
    Retry,
}

/// What is to be done to many dead letters: to `ids`, or to all that `filter` finds.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BulkDead {
    #[schema(inline)]
    action: OnDead,
    /// With `redrive`: under another policy.
    #[schema(value_type = Option<PolicyShape>)]
    policy: Option<Policy>,
    #[schema(value_type = Option<Vec<String>>, max_items = 10000)]
    ids: Option<Vec<TaskId>>,
    filter: Option<OfDead>,
    /// Only say how many it would be done to.
    #[serde(default)]
    dry_run: bool,
    /// How many in a second, at the most.
    #[schema(minimum = 1)]
    per_second: Option<u32>,
    /// For the audit; at most 4096 bytes.
    #[schema(max_length = 4096)]
    note: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OnDead {
    Redrive,
    Resolve,
    Discard,
}

/// How it is done.
struct How {
    dry_run: bool,
    per_second: Option<u32>,
    note: Option<String>,
}

/// A line of the answer.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
#[schema(as = BulkLine)]
enum Line {
    /// Nothing was done; so many it would be.
    DryRun {
        #[schema(value_type = CountShape)]
        count: Count,
    },
    /// So far.
    Running(Progress),
    /// That was all.
    Finished(Progress),
    /// It could not go on; what is done is done.
    Broken { problem: Problem },
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
struct Progress {
    done: u64,
    /// They run, and will be stopped after their attempt, unless that succeeds.
    requested: u64,
    /// By reason: `twin`, `gone`, `running`, `busy`.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    skipped: std::collections::BTreeMap<&'static str, u64>,
    failed: u64,
    /// The first of them, and why.
    #[schema(value_type = Vec<Vec<String>>)]
    failures: Vec<(TaskId, String)>,
}

impl From<&BulkResult> for Progress {
    fn from(result: &BulkResult) -> Self {
        let BulkResult { done, requested, failed, .. } = *result;
        Self { done, requested, skipped: result.skipped.clone(), failed, failures: result.failures.clone() }
    }
}

/// Do something to many tasks
///
/// Answers with newline-delimited JSON, a line after each batch. Hang up to stop it.
#[utoipa::path(post, path = "/tasks/actions", tag = "tasks", request_body = BulkTasks,
    responses((status = 200, body = Line, content_type = "application/x-ndjson", description = "How it goes.")))]
async fn bulk_tasks(State(app): State<App>, Operator(who): Operator, Json(asked): Json<BulkTasks>) -> Answer<Response> {
    let action = match asked.action {
        OnTasks::Cancel => TaskAction::Cancel,
        OnTasks::Fail => TaskAction::Fail,
        OnTasks::Retry => TaskAction::RetryNow,
    };
    let which = which(asked.ids, asked.filter.map(Into::into))?;
    let BulkTasks { dry_run, per_second, note, .. } = asked;
    begin(app, Bulk::tasks(action, which, who.name), How { dry_run, per_second, note }).await
}

/// Do something to many dead letters
///
/// Answers with newline-delimited JSON, a line after each batch. Hang up to stop it.
#[utoipa::path(post, path = "/dead/actions", tag = "dead letters", request_body = BulkDead,
    responses((status = 200, body = Line, content_type = "application/x-ndjson", description = "How it goes.")))]
async fn bulk_dead(State(app): State<App>, Operator(who): Operator, Json(asked): Json<BulkDead>) -> Answer<Response> {
    if let Some(policy) = &asked.policy {
        own::check_callbacks(policy, None)?;
    }
    let action = match (asked.action, asked.policy) {
        (OnDead::Redrive, policy) => DeadAction::Redrive(policy.map(Arc::new)),
        (_, Some(_)) => return Err(redrive::Error::invalid("policy", "is for redrive only").into()),
        (OnDead::Resolve, None) => DeadAction::Resolve,
        (OnDead::Discard, None) => DeadAction::Discard,
    };
    let which = which(asked.ids, asked.filter.map(Into::into))?;
    let how = How { dry_run: asked.dry_run, per_second: asked.per_second, note: asked.note };
    begin(app, Bulk::dead(action, which, who.name), how).await
}

/// Both or neither would be a mistake that is done to everything.
fn which<F>(ids: Option<Vec<TaskId>>, filter: Option<F>) -> Answer<Which<F>> {
    match (ids, filter) {
        (Some(ids), None) if ids.len() <= MOST_IDS => Ok(Which::Ids(ids)),
        (Some(_), None) => {
            Err(redrive::Error::invalid("ids", format!("are at most {MOST_IDS}; or give a filter")).into())
        }
        (None, Some(filter)) => Ok(Which::Filter(filter)),
        _ => Err(redrive::Error::invalid("filter", "either ids are given or a filter; {} is all of them").into()),
    }
}

async fn begin(app: App, mut bulk: Bulk, how: How) -> Answer<Response> {
    let note = noted(how.note.as_deref().unwrap_or_default(), LONGEST_NOTE)?;
    (bulk.per_second, bulk.note) = (how.per_second, note.map(str::to_owned));
    if how.dry_run {
        let count = app.store.dry_run(&bulk).await?;
        let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
        return Ok((kind, line(&Line::DryRun { count })).into_response());
    }
    streamed(app, bulk).await
}

/// Does it, with a line after each batch.
pub(crate) async fn streamed(app: App, bulk: Bulk) -> Answer<Response> {
    let run = app.store.begin_bulk(bulk, app.clock.now()).await?;
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, UNBUFFERED, Body::from_stream(steps(app, run))).into_response())
}

fn line(line: &Line) -> Bytes {
    (serde_json::to_string(line).unwrap_or_default() + "\n").into() // plain values cannot fail
}

/// A line after each step, until it is finished or broken.
fn steps(app: App, run: BulkRun) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(Some(run), move |run| {
        let app = app.clone();
        async move {
            let (said, run, goes_on) = next(&app, run?).await;
            Some((Ok(line(&said)), goes_on.then_some(run)))
        }
    })
}

/// Does the next batch, when its time has come; what is to be said of it, and whether it goes on. A database that cannot be reached
/// for a moment is asked again.
async fn next(app: &App, mut run: BulkRun) -> (Line, BulkRun, bool) {
    let mut failures = 0;
    loop {
        if app.stopping.is_cancelled() {
            return (Line::Broken { problem: stopping() }, run, false);
        }
        let went;
        (run, went) = step(run, app.clock.now()).await;
        let wait = match went {
            Ok(Step::Wait(until)) => until.since(app.clock.now()).max(Duration::from_millis(1)),
            Ok(Step::More) => {
                app.wake();
                return (Line::Running(run.result().into()), run, true);
            }
            Ok(Step::Finished) => {
                app.wake();
                return (Line::Finished(run.result().into()), run, false);
            }
            Err(e) if e.is_transient() && failures < MOST_FAILURES => {
                failures += 1;
                Duration::from_secs(1)
            }
            Err(e) => return (Line::Broken { problem: e.into() }, run, false),
        };
        app.stopping.run_until_cancelled(pause(wait)).await;
    }
}

/// A batch is written to its record when it is done: whoever hangs up stops what comes after it.
async fn step(mut run: BulkRun, now: Timestamp) -> (BulkRun, redrive::Result<Step>) {
    unbroken(async move {
        let went = run.step(now).await;
        (run, went)
    })
    .await
}

pub(super) fn stopping() -> Problem {
    let detail =
        "the server stops; what is done is done, and the same filter goes on with the rest, on another server or later";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", detail)
}

/// Does all of it before it answers.
pub(crate) async fn whole(app: &App, bulk: Bulk) -> Answer<BulkResult> {
    let mut run = app.store.begin_bulk(bulk, app.clock.now()).await?;
    loop {
        let (said, after, goes_on) = next(app, run).await;
        match said {
            Line::Broken { problem } => return Err(problem),
            _ if goes_on => run = after,
            _ => return Ok(after.result().clone()),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a shell: the store has said until when")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
