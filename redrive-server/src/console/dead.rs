//! Dead letters: what they died of, and a list by filter.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use redrive::DeadReason;
use redrive::store::{DeadFilter, DeadGroup, DeadGroups, DeadTask};

use crate::server::App;
use crate::server::problem::Answer;

use super::fields::Fields;
use super::filter::{self, NAMES, PAGE};
use super::html::{self, Html};
use super::tasks::{Row, beginning, tag};
use super::visit::{Frame, Visit};
use super::words::{Words, fill};

/// Groups that are shown; the rest are in the list.
const MOST_GROUPS: usize = 20;

#[derive(Template)]
#[template(path = "dead.html")]
struct Page {
    f: Frame,
    asked: Fields,
    is_filtered: bool,
    /// What of the filter is not understood.
    wrong: Option<String>,
    groups: Vec<Group>,
    /// What was not looked at, or is not shown.
    more_groups: Option<String>,
    reasons: Vec<(&'static str, &'static str)>,
    rows: Vec<Letter>,
    first: Option<String>,
    next: Option<String>,
}

/// Letters that died of the same.
struct Group {
    title: String,
    method: String,
    reason: &'static str,
    error_kind: String,
    message: String,
    first: Html,
    last: Html,
    unowned: u64,
    link: String,
    /// Where all of them are redriven, if they can be told from others.
    bulk: Option<String>,
}

struct Letter {
    row: Row,
    dead_at: Html,
    owner: String,
}

fn group(group: &DeadGroup, w: &Words) -> Group {
    let common = group.common.as_deref().map(beginning);
    let is_told_apart = common.is_some() && group.error_kind.is_some();
    let fields = Fields::default()
        .with("method", Some(&group.method))
        .with("reason", Some(group.reason.as_str()))
        .with("kind", group.error_kind.as_deref())
        .with("error", common);
    let many = if group.letters == 1 { w.group_one } else { w.group_many };
    Group {
        title: fill(many, &[&html::number(group.letters)]),
        method: group.method.clone(),
        reason: w.reason(group.reason),
        error_kind: group.error_kind.clone().unwrap_or_default(),
        message: group.message.clone().unwrap_or_default(),
        first: html::at(group.first),
        last: html::ago(group.last),
        unowned: group.unowned,
        link: format!("/dead{}", fields.query()),
        bulk: is_told_apart.then(|| {
            format!("/dead/bulk{}", fields.with("which", Some("filter")).with("action", Some("redrive")).query())
        }),
    }
}

fn letter(dead: &DeadTask, w: &Words) -> Letter {
    Letter {
        row: Row::of(&dead.task, tag("bad", w.reason(dead.reason)), "/dead"),
        dead_at: html::ago(dead.dead_at),
        owner: dead.owner.clone().unwrap_or_default(),
    }
}

/// All letters by what they died of, as it is or was a moment ago.
pub(super) async fn groups(app: &App) -> redrive::Result<Arc<DeadGroups>> {
    let store = app.store.clone();
    app.memory.groups.get(&app.clock, Box::pin(async move { store.dead_groups().await })).await
}

pub(super) async fn list(State(app): State<App>, visit: Visit, asked: Fields) -> Answer<Response> {
    let (f, now) = (visit.frame, app.clock.now());
    let wanted = filter::of_dead(&asked, now);
    let wanted = wanted.map(|wanted| DeadFilter { task: filter::for_list(wanted.task), ..wanted });
    let (found, wrong) = match wanted {
        Ok(wanted) => (app.store.search_dead(&wanted, PAGE).await?, None),
        Err(problem) => (filter::nothing(), Some(problem)),
    };
    let filtered = asked.only(NAMES);
    let is_front = filtered.is_empty() && asked.get("after").is_none();
    let groups = if is_front { groups(&app).await? } else { Arc::default() };
    let next = found.continue_after.map(|id| filtered.with("after", Some(&id.to_string())).query());
    let is_cut = is_front && (!groups.all || groups.groups.len() > MOST_GROUPS);
    let looked = html::number(u64::from(redrive::store::MOST_LOOKED_AT));
    let page = Page {
        more_groups: is_cut.then(|| fill(f.w.groups_cut, &[&looked, &MOST_GROUPS])),
        groups: groups.groups.iter().take(MOST_GROUPS).map(|g| group(g, f.w)).collect(),
        reasons: DeadReason::ALL.map(|reason| (reason.as_str(), f.w.reason(reason))).into(),
        rows: found.items.iter().map(|dead| letter(dead, f.w)).collect(),
        first: asked.get("after").map(|_| format!("/dead{}", filtered.query())),
        next: next.map(|query| format!("/dead{query}")),
        is_filtered: !filtered.is_empty(),
        wrong: wrong.as_ref().map(|problem| problem.detail.clone()),
        asked: filtered,
        f: f.clone(),
    };
    Ok(super::answered(wrong.as_ref(), f.show(&page)))
}
