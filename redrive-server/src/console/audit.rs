//! What people did, and what they were refused: who, what, when, before and after. For admins, as in the API.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use redrive::store::{AuditFilter, AuditOutcome, Audited, Role};
use serde_json::Value;

use crate::server::App;
use crate::server::problem::Answer;

use super::fields::Fields;
use super::filter::{PAGE, time};
use super::html::{self, Html};
use super::tasks::beginning;
use super::visit::{Frame, Visit};

const NAMES: &[&str] = &["who", "action", "target", "from", "before"];

#[derive(Template)]
#[template(path = "audit.html")]
struct Page {
    f: Frame,
    asked: Fields,
    is_filtered: bool,
    /// What of the filter is not understood.
    wrong: Option<String>,
    rows: Vec<Row>,
    first: Option<String>,
    next: Option<String>,
}

struct Row {
    at: Html,
    who: String,
    who_link: String,
    action: String,
    target: String,
    target_link: String,
    refused: Option<String>,
    note: String,
    changes: Vec<Change>,
}

/// What was changed: of two objects the fields that differ, else the whole.
struct Change {
    field: String,
    before: String,
    after: String,
}

pub(super) async fn list(State(app): State<App>, visit: Visit, asked: Fields) -> Answer<Response> {
    visit.needs(&app, Role::Admin).await?;
    let f = visit.frame;
    let (found, wrong) = match wanted(&asked) {
        Ok(wanted) => (app.store.audits(&wanted, PAGE).await?, None),
        Err(problem) => (Vec::new(), Some(problem)),
    };
    let filtered = asked.only(NAMES);
    let next = found.last().filter(|_| found.len() == PAGE as usize);
    let next = next.map(|last| format!("/audit{}", filtered.with("after", Some(&last.id.to_string())).query()));
    let page = Page {
        rows: found.iter().map(row).collect(),
        first: asked.get("after").map(|_| format!("/audit{}", filtered.query())),
        next,
        is_filtered: !filtered.is_empty(),
        wrong: wrong.as_ref().map(|problem| problem.detail.clone()),
        asked: filtered,
        f: f.clone(),
    };
    Ok(super::answered(wrong.as_ref(), f.show(&page)))
}

fn wanted(asked: &Fields) -> Answer<AuditFilter> {
    let text = |name: &str| asked.get(name).map(str::to_owned);
    Ok(AuditFilter {
        who: text("who"),
        action: text("action"),
        target: text("target"),
        from: time(asked, "from")?,
        before: time(asked, "before")?,
        after: asked.parsed("after")?,
    })
}

fn row(record: &Audited) -> Row {
    let entry = &record.entry;
    let only = |name, value| format!("/audit{}", Fields::default().with(name, Some(value)).query());
    let refused = match &entry.outcome {
        AuditOutcome::Done => None,
        AuditOutcome::Refused(why) => Some(why.clone()),
    };
    Row {
        at: html::at_and_ago(record.at),
        who: entry.who.clone(),
        who_link: only("who", &entry.who),
        action: entry.action.clone(),
        target: named(entry.after.as_ref()).unwrap_or_else(|| entry.target.clone()),
        target_link: only("target", &entry.target),
        refused,
        note: entry.note.clone().unwrap_or_default(),
        changes: changes(entry.before.as_ref(), entry.after.as_ref()),
    }
}

/// A gate is a number to the store; people know it by its name.
fn named(after: Option<&Value>) -> Option<String> {
    let is_gate = after?.get("held").is_some();
    after?.get("name")?.as_str().filter(|_| is_gate).map(str::to_owned)
}

fn changes(before: Option<&Value>, after: Option<&Value>) -> Vec<Change> {
    let whole = || Change { field: String::new(), before: shown(before), after: shown(after) };
    let (Some(Value::Object(old)), Some(Value::Object(new))) = (before, after) else {
        return (before.is_some() || after.is_some()).then(whole).into_iter().collect();
    };
    let mut fields: Vec<&String> = old.keys().chain(new.keys()).collect();
    fields.sort_unstable();
    fields.dedup();
    let differ = fields.into_iter().filter(|field| old.get(*field) != new.get(*field));
    let one =
        |field: &String| Change { field: field.clone(), before: shown(old.get(field)), after: shown(new.get(field)) };
    differ.map(one).collect()
}

fn shown(value: Option<&Value>) -> String {
    let text = value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned)).unwrap_or_default();
    match beginning(&text) {
        all if all.len() == text.len() => text,
        cut => format!("{cut}…"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(before: Option<&Value>, after: Option<&Value>) -> Vec<String> {
        let all = changes(before, after).into_iter();
        all.map(|change| format!("{}:{}:{}", change.field, change.before, change.after)).collect()
    }

    #[test]
    fn of_two_objects_only_what_differs_is_shown() {
        let (before, after) = (json!({ "held": null, "name": "a" }), json!({ "held": "open", "name": "a" }));
        assert_eq!(said(Some(&before), Some(&after)), ["held:null:open"]);
        assert_eq!(said(None, Some(&json!("2s"))), ["::2s"]);
        assert!(said(None, None).is_empty());
        assert_eq!((named(Some(&after)).as_deref(), named(Some(&json!({ "name": "a" })))), (Some("a"), None));
    }
}
