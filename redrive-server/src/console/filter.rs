//! Which tasks or letters a page is about: what its query says.

use std::time::Duration;

use axum::http::StatusCode;
use redrive::store::{DeadFilter, Found, TaskFilter};
use redrive::{DeadReason, Status, Timestamp};

use crate::server::problem::{Answer, Problem};

use super::fields::Fields;

/// The fields of a filter, as they stand in the address. `after` is the page.
pub(super) const NAMES: &[&str] = &[
    "status",
    "method",
    "key",
    "business_type",
    "business_id",
    "kind",
    "error",
    "last",
    "from",
    "before",
    "due",
    "reason",
    "owned",
    "owner",
];
/// Entries of a page.
pub(super) const PAGE: u32 = 50;

fn wrong(field: &str, why: impl std::fmt::Display) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "not_understood", format!("{field}: {why}"))
}

pub(super) fn of_tasks(asked: &Fields, now: Timestamp) -> Answer<TaskFilter> {
    let text = |name: &str| asked.get(name).map(str::to_owned);
    let status = match asked.get("status") {
        None => None,
        Some("pending") => Some(Status::Pending),
        Some("running") => Some(Status::Running),
        Some(other) => return Err(wrong("status", format!("{other:?} is none of pending, running"))),
    };
    let last =
        asked.get("last").map(|text| humantime::parse_duration(text).map_err(|e| wrong("last", e))).transpose()?;
    let is_due = asked.is("due", "now");
    Ok(TaskFilter {
        status,
        method: text("method"),
        key: text("key"),
        business_type: text("business_type"),
        business_id: text("business_id"),
        error_kind: text("kind"),
        error_contains: text("error"),
        created_from: time(asked, "from")?.or(last.map(|last: Duration| now - last)),
        created_before: time(asked, "before")?,
        due_before: is_due.then_some(now),
        after: asked.parsed("after")?,
        ..TaskFilter::default()
    })
}

/// The same for a list, which shows no params.
pub(super) fn for_list(wanted: TaskFilter) -> TaskFilter {
    TaskFilter { without_params: true, ..wanted }
}

/// What is found by a filter that is not understood.
pub(super) fn nothing<T>() -> Found<T> {
    Found { items: Vec::new(), continue_after: None }
}

/// A time as a form sends it, in UTC, or as the API has it.
pub(super) fn time(asked: &Fields, name: &str) -> Answer<Option<Timestamp>> {
    let Some(text) = asked.get(name) else { return Ok(None) };
    let whole = [text.to_owned(), format!("{text}Z"), format!("{text}:00Z")];
    let read = whole.iter().find_map(|text| text.replace(' ', "T").parse().ok());
    read.map(Some).ok_or_else(|| wrong(name, format!("{text:?} is not a time such as 2026-02-05T12:00")))
}

/// One of several, by its name.
pub(super) fn one_of<T: Copy, const N: usize>(
    asked: &Fields,
    field: &str,
    all: [T; N],
    name: fn(T) -> &'static str,
) -> Answer<Option<T>> {
    let Some(text) = asked.get(field) else { return Ok(None) };
    let known = all.into_iter().find(|one| name(*one) == text);
    known.map(Some).ok_or_else(|| wrong(field, format!("{text:?} is not known")))
}

pub(super) fn of_dead(asked: &Fields, now: Timestamp) -> Answer<DeadFilter> {
    let reason = one_of(asked, "reason", DeadReason::ALL, DeadReason::as_str)?;
    let owned = asked.get("owned").map(|owned| owned == "yes");
    let owner = asked.get("owner").map(str::to_owned);
    Ok(DeadFilter { task: of_tasks(asked, now)?, reason, owner, owned, acknowledged: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_a_filter_and_mistakes_are_named() {
        let now: Timestamp = "2026-11-16T12:00:00Z".parse().unwrap();
        let read = |query: &str| of_dead(&Fields::read(query.as_bytes()), now);
        let filter = read("method=pay&status=&error=no+route&last=1h&reason=expired&owned=no").unwrap();
        assert_eq!((filter.task.method.as_deref(), filter.task.status), (Some("pay"), None));
        assert_eq!(filter.task.created_from, Some(now - Duration::from_secs(3600)));
        assert_eq!((filter.reason, filter.owned), (Some(DeadReason::Expired), Some(false)));
        let minute: Timestamp = "2026-11-16T12:30:00Z".parse().unwrap();
        assert_eq!(read("before=2026-11-16T12:30").unwrap().task.created_before, Some(minute));
        for mistake in ["from=yesterday", "last=soon", "status=done", "reason=why", "after=x"] {
            let said = read(mistake).unwrap_err().detail;
            assert!(said.starts_with(mistake.split('=').next().unwrap()), "{said}");
        }
    }
}
