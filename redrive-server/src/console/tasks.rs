//! Tasks that wait or run: a list by filter, all of it in the address.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use redrive::{Status, StopRequest, Task};

use crate::server::App;
use crate::server::problem::Answer;

use super::address::Address;
use super::fields::Fields;
use super::filter::{self, NAMES, PAGE};
use super::html::{self, Html};
use super::visit::{Frame, Visit};
use super::words::Words;

#[derive(Template)]
#[template(path = "tasks.html")]
struct Page {
    f: Frame,
    address: String,
    asked: Fields,
    is_filtered: bool,
    /// What of the filter is not understood.
    wrong: Option<String>,
    rows: Vec<Row>,
    /// The first page, if this is another.
    first: Option<String>,
    next: Option<String>,
}

/// A task, or a letter's task, in a list.
pub(super) struct Row {
    pub(super) id: String,
    /// Its own page.
    pub(super) link: String,
    pub(super) method: String,
    pub(super) key: String,
    pub(super) business: String,
    pub(super) business_link: String,
    pub(super) state: Html,
    pub(super) attempts: String,
    pub(super) error: String,
    pub(super) error_kind: String,
    pub(super) due: Html,
    pub(super) created: Html,
}

impl Row {
    pub(super) fn of(task: &Task, state: Html, path: &str) -> Self {
        let error = task.last_error.as_ref();
        let business = task.business.as_ref();
        Self {
            id: task.id.to_string(),
            link: format!("{}/{}", path.trim_end_matches("/ended"), task.id),
            method: task.method.clone(),
            key: task.key.clone().unwrap_or_default(),
            business: business.map(|b| format!("{} {}", b.kind, b.id)).unwrap_or_default(),
            business_link: business.map(|b| of_business(path, b)).unwrap_or_default(),
            state,
            attempts: attempts(task),
            error: error.map(|e| beginning(&e.message).to_owned()).unwrap_or_default(),
            error_kind: error.map(|e| e.kind.to_string()).unwrap_or_default(),
            due: html::ago(task.due),
            created: html::ago(task.created_at),
        }
    }
}

pub(super) fn of_business(path: &str, business: &redrive::Business) -> String {
    let fields = Fields::default().with("business_type", Some(&business.kind)).with("business_id", Some(&business.id));
    format!("{path}{}", fields.query())
}

/// A list shows the beginning of a message; the task's own page has all of it.
pub(super) fn beginning(text: &str) -> &str {
    text.get(..text.floor_char_boundary(200)).unwrap_or_default()
}

/// How many there were, and how many there may be.
pub(super) fn attempts(task: &Task) -> String {
    match task.policy.max_attempts {
        Some(most) => format!("{} / {most}", task.attempts),
        None => format!("{} / ∞", task.attempts),
    }
}

pub(super) fn state(task: &Task, now: redrive::Timestamp, w: &Words) -> Html {
    let (class, word) = match (task.status, task.stop) {
        (Status::Running, StopRequest::None) => ("good", w.state_running),
        (Status::Running, _) => ("warn", w.state_stopping),
        (Status::Pending, _) if task.attempts > 0 => ("warn", w.state_retrying),
        (Status::Pending, _) if task.due > now => ("", w.state_scheduled),
        (Status::Pending, _) => ("", w.state_due),
    };
    tag(class, word)
}

/// A word in a colour.
pub(super) fn tag(class: &str, word: &str) -> Html {
    Html(format!("<span class=\"tag {class}\">{}</span>", html::escape(word)))
}

pub(super) async fn list(
    State(app): State<App>,
    visit: Visit,
    Address(address): Address,
    asked: Fields,
) -> Answer<Response> {
    let (f, now) = (visit.frame, app.clock.now());
    let (found, wrong) = match filter::of_tasks(&asked, now) {
        Ok(wanted) => (app.store.search(&filter::for_list(wanted), PAGE).await?, None),
        Err(problem) => (filter::nothing(), Some(problem)),
    };
    let filtered = asked.only(NAMES);
    let next = found.continue_after.map(|id| filtered.with("after", Some(&id.to_string())).query());
    let page = Page {
        rows: found.items.iter().map(|task| Row::of(task, state(task, now, f.w), "/tasks")).collect(),
        first: asked.get("after").map(|_| format!("/tasks{}", filtered.query())),
        next: next.map(|query| format!("/tasks{query}")),
        is_filtered: !filtered.is_empty(),
        wrong: wrong.as_ref().map(|problem| problem.detail.clone()),
        asked: filtered,
        address,
        f: f.clone(),
    };
    Ok(super::answered(wrong.as_ref(), f.show(&page)))
}
