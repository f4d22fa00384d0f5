//! What people do to many sagas. The answer is a stream of lines, one for each saga, so that whoever asked sees how far it is; when
//! they hang up it stops, and what is done is done and in the audit.
//!
//! *Invariants.* All are reached, however many there are and however old: those of a state by the time since when they are in it,
//! those of a name by when they were started, page by page. Each is acted on once: one that changes its state by it goes to the
//! front, which has been read already.
//!
//! *Failure.* One that cannot be acted on does not keep the others from it. Where the next page cannot be read, or the server stops,
//! the last line says so, and the same request goes on with the rest.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{self, Stream};
use redrive::Error;
use redrive::saga::SagaState;
use redrive::store::SagaFilter;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::Operator;
use super::bulk::stopping;
use super::input::Json;
use super::problem::{Answer, Problem};
use super::sagas::Act;
use super::shapes::SagaStateShape;
use super::{App, UNBUFFERED};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(act_on_many))
}

/// Ids of one request.
const MOST_IDS: usize = 1_000;
/// Sagas that are read at once.
const PAGE: u32 = 1_000;

/// Which, and what is to be done to each.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ActOnMany {
    /// These. Default: those of `state` and `name` that have not ended.
    #[serde(default)]
    #[schema(max_items = 1000)]
    ids: Vec<String>,
    /// One in which a saga has not ended: `running`, `waiting`, `compensating` or `stuck`.
    #[schema(value_type = Option<SagaStateShape>)]
    state: Option<SagaState>,
    name: Option<String>,
    /// Nothing is done; the answer says to which it would be.
    #[serde(default)]
    dry_run: bool,
    act: Act,
}

/// A line of the answer.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
#[schema(as = SagaBulkLine)]
enum Line {
    /// With `dry_run`: it would be done to this one.
    WouldBe {
        id: String,
    },
    Done {
        id: String,
    },
    /// It was not done, and why.
    Failed {
        id: String,
        /// As that of a problem: `not_found`, `conflict`, …
        code: &'static str,
        problem: String,
    },
    /// That was all.
    Finished {
        done: u64,
        failed: u64,
    },
    /// It could not go on; what is done is done.
    Broken {
        problem: Problem,
    },
}

/// Act on many sagas
///
/// Each by itself: one that cannot be acted on does not keep the others from it. Answers with newline-delimited JSON, a line for each
/// saga and one at the end. Hang up to stop it.
#[utoipa::path(post, path = "/sagas/actions", tag = "sagas", request_body = ActOnMany,
    responses((status = 200, body = Line, content_type = "application/x-ndjson", description = "How it goes.")))]
async fn act_on_many(State(app): State<App>, Operator(who): Operator, Json(many): Json<ActOnMany>) -> Answer<Response> {
    many.act.check()?;
    app.engine()?;
    let unread = unread(&many)?;
    let run =
        Run { by: who.name, act: many.act, dry_run: many.dry_run, found: many.ids.into(), unread, done: 0, failed: 0 };
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, UNBUFFERED, Body::from_stream(lines(app, run))).into_response())
}

/// The first page that is to be read; none, if they are named by their ids.
fn unread(many: &ActOnMany) -> redrive::Result<Option<SagaFilter>> {
    let filter = SagaFilter { state: many.state, name: many.name.clone(), id_prefix: None, after: None };
    match (many.ids.len(), many.state, &many.name) {
        (1.., None, None) if many.ids.len() <= MOST_IDS => Ok(None),
        (1.., None, None) => Err(Error::invalid("ids", format!("are more than {MOST_IDS}"))),
        (1.., ..) => Err(Error::invalid("ids", "are given without state and name")),
        (0, None, None) => Err(Error::invalid("ids", "must be given, or state or name")),
        (0, Some(state), _) if state.is_final() => {
            Err(Error::invalid("state", format!("must be one that goes on: those that are {state} have ended")))
        }
        (0, _, Some(name)) if name.contains('\0') => Err(Error::invalid("name", "must have no NUL")),
        (0, ..) => Ok(Some(filter)),
    }
}

/// How far it is.
struct Run {
    by: String,
    act: Act,
    dry_run: bool,
    /// Those that were read, or named, and are still to be acted on.
    found: VecDeque<String>,
    /// The next page.
    unread: Option<SagaFilter>,
    done: u64,
    failed: u64,
}

fn lines(app: App, run: Run) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(Some(run), move |run| {
        let app = app.clone();
        async move {
            let mut run = run?;
            let line = run.next(&app).await.unwrap_or_else(|problem| Line::Broken { problem });
            let is_last = matches!(line, Line::Finished { .. } | Line::Broken { .. });
            let text = serde_json::to_string(&line).unwrap_or_default() + "\n"; // plain values cannot fail
            Some((Ok(text.into()), (!is_last).then_some(run)))
        }
    })
}

impl Run {
    async fn next(&mut self, app: &App) -> Answer<Line> {
        if app.stopping.is_cancelled() {
            return Err(stopping());
        }
        while self.found.is_empty()
            && let Some(filter) = self.unread.take()
        {
            self.read(app, filter).await?;
        }
        match self.found.pop_front() {
            Some(id) if self.dry_run => Ok(Line::WouldBe { id }),
            Some(id) => self.act_on(app, id).await,
            None => Ok(Line::Finished { done: self.done, failed: self.failed }),
        }
    }

    /// Reads a page; if it is full, there may be another one.
    async fn read(&mut self, app: &App, filter: SagaFilter) -> Answer<()> {
        let page = app.store.sagas(&filter, PAGE).await?;
        let last = page.last().filter(|_| page.len() == PAGE as usize);
        self.unread = last.map(|saga| {
            let at = if filter.state.is_some() { saga.since } else { saga.created_at };
            SagaFilter { after: Some((at, saga.id.clone())), ..filter.clone() }
        });
        self.found.extend(page.into_iter().filter(|saga| !saga.state.is_final()).map(|saga| saga.id));
        Ok(())
    }

    async fn act_on(&mut self, app: &App, id: String) -> Answer<Line> {
        match self.act.on(app.engine()?, &id, &self.by).await {
            Ok(()) => {
                self.done += 1;
                Ok(Line::Done { id })
            }
            Err(e) => {
                self.failed += 1;
                let problem = e.to_string();
                Ok(Line::Failed { id, code: Problem::from(e).code, problem })
            }
        }
    }
}
