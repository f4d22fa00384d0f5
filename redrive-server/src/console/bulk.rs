//! What is done to many tasks or letters: first how many it would be, then it is done, with progress.
//!
//! The first step only looks, so it is a GET: what it is about is in the address. The second is a POST. A script reads the same
//! lines as callers of the API do; without one the answer comes when all is done.

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use redrive::store::{Bulk, BulkResult, Count, DeadAction, Role, TaskAction, Which};
use redrive::{TaskId, Timestamp};

use crate::server::App;
use crate::server::input::{LONGEST_NOTE, noted};
use crate::server::problem::{Answer, Problem};

use super::fields::Fields;
use super::filter::{self, NAMES};
use super::html;
use super::visit::{Act, Frame, Visit};
use super::words::{Words, fill};

#[derive(Template)]
#[template(path = "bulk.html")]
struct Page {
    f: Frame,
    path: &'static str,
    title: String,
    /// What is sent again with the form.
    fields: Vec<(String, String)>,
    /// The filter in words.
    which: Vec<(String, String)>,
    ids: usize,
    n: u64,
    is_danger: bool,
    /// What the button says: not "cancel", which could be taken for going back.
    go: String,
    result: Option<BulkResult>,
}

/// What can be done, to what.
#[derive(Clone, Copy)]
struct Kind {
    path: &'static str,
    action: &'static str,
}

const TASKS: &str = "/tasks";
const DEAD: &str = "/dead";
const ACTIONS: &[(&str, &str)] =
    &[(TASKS, "retry"), (TASKS, "cancel"), (TASKS, "fail"), (DEAD, "redrive"), (DEAD, "resolve"), (DEAD, "discard")];

impl Kind {
    fn of(path: &'static str, asked: &Fields) -> Answer<Self> {
        let found = ACTIONS.iter().find(|(of, action)| *of == path && asked.is("action", action));
        let wrong = || Problem::new(StatusCode::BAD_REQUEST, "not_understood", "action: is not known");
        found.map(|(path, action)| Self { path, action }).ok_or_else(wrong)
    }

    fn word(self, w: &Words) -> &'static str {
        match self.action {
            "retry" => w.bulk_retry,
            "cancel" => w.bulk_cancel,
            "fail" => w.bulk_fail,
            "redrive" => w.bulk_redrive,
            "resolve" => w.bulk_resolve,
            _ => w.bulk_discard,
        }
    }

    fn bulk(self, asked: &Fields, who: &str, now: Timestamp) -> Answer<Bulk> {
        // Which page is looked at is no part of the filter.
        let (ids, asked) = (ids(asked)?, &asked.only(NAMES));
        Ok(match self.path {
            TASKS => {
                let which =
                    if let Some(ids) = ids { Which::Ids(ids) } else { Which::Filter(filter::of_tasks(asked, now)?) };
                let action = match self.action {
                    "cancel" => TaskAction::Cancel,
                    "fail" => TaskAction::Fail,
                    _ => TaskAction::RetryNow,
                };
                Bulk::tasks(action, which, who)
            }
            _ => {
                let which =
                    if let Some(ids) = ids { Which::Ids(ids) } else { Which::Filter(filter::of_dead(asked, now)?) };
                let action = match self.action {
                    "resolve" => DeadAction::Resolve,
                    "discard" => DeadAction::Discard,
                    _ => DeadAction::Redrive(None),
                };
                Bulk::dead(action, which, who)
            }
        })
    }
}

/// Those that are ticked, unless it is about all that the filter finds.
fn ids(asked: &Fields) -> Answer<Option<Vec<TaskId>>> {
    if asked.is("which", "filter") {
        return Ok(None);
    }
    let ids = asked.all("id").map(|id| id.parse().map_err(Problem::from)).collect::<Answer<Vec<TaskId>>>()?;
    let none = "nothing is selected; tick what it is to be done to, or choose all that the filter finds";
    if ids.is_empty() { Err(Problem::new(StatusCode::BAD_REQUEST, "nothing_selected", none)) } else { Ok(Some(ids)) }
}

fn page(f: &Frame, kind: Kind, asked: &Fields, count: Count, result: Option<BulkResult>) -> Page {
    let kept: Vec<&str> = NAMES.iter().copied().chain(["which", "id", "action"]).collect();
    let filter = if asked.is("which", "filter") { asked.only(NAMES) } else { Fields::default() };
    let title = fill(kind.word(f.w), &[&html::count(count)]);
    Page {
        path: kind.path,
        go: title.trim_end_matches(['?', '？']).to_owned(),
        title,
        fields: asked.only(&kept).pairs().to_vec(),
        which: filter.pairs().to_vec(),
        ids: asked.all("id").count(),
        n: count.n,
        is_danger: matches!(kind.action, "discard" | "cancel" | "fail"),
        result,
        f: f.clone(),
    }
}

async fn ask(app: App, visit: Visit, asked: Fields, path: &'static str) -> Answer<Response> {
    visit.needs(&app, Role::Operator).await?;
    let kind = Kind::of(path, &asked)?;
    let bulk = kind.bulk(&asked, &visit.who.name, app.clock.now())?;
    let count = app.store.dry_run(&bulk).await?;
    Ok(visit.frame.show(&page(&visit.frame, kind, &asked, count, None)))
}

async fn run(app: App, act: Act, is_script: bool, path: &'static str) -> Answer<Response> {
    let kind = Kind::of(path, &act.fields)?;
    let mut bulk = kind.bulk(&act.fields, &act.visit.who.name, app.clock.now())?;
    bulk.note = noted(act.fields.text("note"), LONGEST_NOTE)?.map(str::to_owned);
    bulk.per_second = act.fields.parsed("rate")?;
    if is_script {
        return crate::server::bulk::streamed(app, bulk).await;
    }
    let result = crate::server::bulk::whole(&app, bulk).await?;
    let count = Count { n: result.total(), ..Count::default() };
    let frame = &act.visit.frame;
    Ok(frame.show(&page(frame, kind, &act.fields, count, Some(result))))
}

pub(super) async fn ask_tasks(State(app): State<App>, visit: Visit, asked: Fields) -> Answer<Response> {
    ask(app, visit, asked, TASKS).await
}

pub(super) async fn ask_dead(State(app): State<App>, visit: Visit, asked: Fields) -> Answer<Response> {
    ask(app, visit, asked, DEAD).await
}

/// Whether a script asks.
pub(super) struct Lines(bool);

impl<S: Sync> axum::extract::FromRequestParts<S> for Lines {
    type Rejection = std::convert::Infallible;
    async fn from_request_parts(parts: &mut axum::http::request::Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(super::takes_lines(&parts.headers)))
    }
}

pub(super) async fn run_tasks(State(app): State<App>, Lines(script): Lines, act: Act) -> Answer<Response> {
    run(app, act, script, TASKS).await
}

pub(super) async fn run_dead(State(app): State<App>, Lines(script): Lines, act: Act) -> Answer<Response> {
    run(app, act, script, DEAD).await
}
