//! Tasks that have ended and are kept: by their policy, or because a person closed them.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use redrive::Timestamp;
use redrive::store::{ArchiveFilter, Archived, EndedAs};

use crate::server::App;
use crate::server::problem::Answer;

use super::fields::Fields;
use super::filter::{self, PAGE};
use super::html::{self, Html};
use super::tasks::{Row, tag};
use super::visit::{Frame, Visit};
use super::words::{Words, fill};

const ALL: [EndedAs; 7] = [
    EndedAs::Done,
    EndedAs::Cancelled,
    EndedAs::Rejected,
    EndedAs::Dropped,
    EndedAs::Resolved,
    EndedAs::Discarded,
    EndedAs::Redriven,
];

#[derive(Template)]
#[template(path = "ended.html")]
struct Page {
    f: Frame,
    asked: Fields,
    is_filtered: bool,
    /// What of the filter is not understood.
    wrong: Option<String>,
    ways: Vec<(&'static str, &'static str)>,
    rows: Vec<Ended>,
    first: Option<String>,
    next: Option<String>,
}

struct Ended {
    row: Row,
    at: Html,
    /// Who ended it, and what they said.
    by: String,
}

pub(super) async fn list(State(app): State<App>, visit: Visit, asked: Fields) -> Answer<Response> {
    let (f, now) = (visit.frame, app.clock.now());
    let (found, wrong) = match wanted(&asked, now) {
        Ok(wanted) => (app.store.search_archive(&wanted, PAGE).await?, None),
        Err(problem) => (filter::nothing(), Some(problem)),
    };
    let names: Vec<&str> = filter::NAMES.iter().copied().chain(["as"]).collect();
    let filtered = asked.only(&names);
    let next = found.continue_after.map(|id| filtered.with("after", Some(&id.to_string())).query());
    let page = Page {
        ways: ALL.map(|way| (way.as_str(), f.w.ended(way))).into(),
        rows: found.items.iter().map(|entry| ended(entry, f.w)).collect(),
        first: asked.get("after").map(|_| format!("/tasks/ended{}", filtered.query())),
        next: next.map(|query| format!("/tasks/ended{query}")),
        is_filtered: !filtered.is_empty(),
        wrong: wrong.as_ref().map(|problem| problem.detail.clone()),
        asked: filtered,
        f: f.clone(),
    };
    Ok(super::answered(wrong.as_ref(), f.show(&page)))
}

fn wanted(asked: &Fields, now: Timestamp) -> Answer<ArchiveFilter> {
    let mut wanted = ArchiveFilter::from(filter::for_list(filter::of_tasks(asked, now)?));
    wanted.ended_as = filter::one_of(asked, "as", ALL, EndedAs::as_str)?;
    Ok(wanted)
}

fn ended(entry: &Archived, w: &Words) -> Ended {
    let by = entry.ended_by.as_ref().map(|by| fill(w.by, &[by]));
    Ended {
        row: Row::of(&entry.task, way(entry.ended_as, w), "/tasks/ended"),
        at: html::ago(entry.ended_at),
        by: by.into_iter().chain(entry.note.clone()).collect::<Vec<_>>().join(" · "),
    }
}

/// How it ended, in a colour.
pub(super) fn way(ended_as: EndedAs, w: &Words) -> Html {
    tag(if ended_as == EndedAs::Done { "good" } else { "" }, w.ended(ended_as))
}
