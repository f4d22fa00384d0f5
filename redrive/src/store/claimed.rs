//! What a claim returns: the columns that nearly every task needs, and the rest as one JSON value that is NULL for a task
//! that has nothing there. Every column of every row costs time on both sides, on SQLite an allocation.

use crate::clock::Timestamp;
use crate::id::TaskId;
use crate::task::{NodeNumber, Status, Task};

use super::db::{Columns, Dialect, Row};
use super::hot::Due;
use super::row::{duration, last_error, read_business, read_policy, stop_request};

const COMMON: [&str; 9] = [
    "id",
    "method_name",
    "params_json",
    "task_key",
    "business_type",
    "business_id",
    "policy",
    "max_attempts",
    "created_at",
];

/// The columns of [`Rest`], and what they are in a task that has nothing there.
const REST: [(&str, &str); 18] = [
    ("attempt_count", "= 0"),
    ("crashes", "= 0"),
    ("postponements", "= 0"),
    ("cancel_requested", "= 0"),
    ("dedup_for", "= 0"),
    ("updated_at", "= {t}created_at"),
    ("max_retry_duration", "IS NULL"),
    ("deadline", "IS NULL"),
    ("first_failed_at", "IS NULL"),
    ("last_error_kind", "IS NULL"),
    ("last_error_msg", "IS NULL"),
    ("last_error_time", "IS NULL"),
    ("history", "IS NULL"),
    ("notified_at", "IS NULL"),
    ("traceparent", "IS NULL"),
    ("origin_id", "IS NULL"),
    ("created_by", "IS NULL"),
    ("updated_by", "IS NULL"),
];

/// What few tasks have, in the order of [`REST`]: it is read from an array.
#[derive(Default, serde::Deserialize)]
struct Rest {
    attempts: u32,
    crashes: u32,
    postponements: u32,
    stop: i64,
    dedup_for: i64,
    updated_at: i64,
    max_duration: Option<i64>,
    deadline: Option<i64>,
    first_failed_at: Option<i64>,
    error_kind: Option<String>,
    error_message: Option<String>,
    error_at: Option<i64>,
    history: Option<String>,
    notified_at: Option<i64>,
    traceparent: Option<String>,
    origin_id: Option<i64>,
    created_by: Option<String>,
    updated_by: Option<String>,
}

/// The columns, of a table that is called `t`.
pub(super) fn claimed_columns(dialect: Dialect, t: &str) -> String {
    let rest = REST.map(|(column, _)| format!("{t}{column}")).join(", ");
    let rest = match dialect {
        Dialect::Postgres => format!("json_build_array({rest})::text"),
        Dialect::Sqlite => format!("json_array({rest})"),
        Dialect::MySql => format!("CAST(JSON_ARRAY({rest}) AS CHAR)"),
    };
    let nothing = REST.map(|(column, nothing)| format!("{t}{column} {}", nothing.replace("{t}", t))).join(" AND ");
    let common = COMMON.map(|column| format!("{t}{column}")).join(", ");
    format!("{common}, CASE WHEN {nothing} THEN NULL ELSE {rest} END")
}

/// A task from these columns, as the claim has made it; `due` says what it was before, from columns that follow if need be.
pub(super) fn read_claimed(
    row: &Row,
    due: impl FnOnce(TaskId, &mut Columns<'_>) -> sqlx::Result<Due>,
    by: (NodeNumber, Timestamp),
) -> sqlx::Result<Task> {
    let c = &mut row.columns();
    let id = TaskId::from_i64(c.int()?);
    let (method, params) = (c.text()?.to_owned(), c.text()?.to_owned());
    let key = c.opt_text()?.map(str::to_owned);
    let business = read_business(c)?;
    let (policy, max_attempts) = (c.opt_text()?, c.opt_int()?);
    let created_at = Timestamp::from_millis(c.int()?);
    let rest = c.opt_text()?.map(serde_json::from_str::<Rest>).transpose();
    let rest = rest.map_err(|e| sqlx::Error::Decode(e.into()))?;
    let rest = rest.unwrap_or_else(|| Rest { updated_at: created_at.as_millis(), ..Rest::default() });
    let due = due(id, c)?;
    let time = |ms: Option<i64>| ms.map(Timestamp::from_millis);
    Ok(Task {
        id,
        lane: due.lane,
        method,
        params,
        key,
        business,
        status: Status::Running,
        policy: read_policy(id, policy, max_attempts, rest.max_duration, rest.deadline)?,
        attempts: rest.attempts,
        crashes: rest.crashes,
        postponements: rest.postponements,
        due: due.due,
        priority: due.priority,
        dedup_for: duration(rest.dedup_for),
        created_at,
        updated_at: Timestamp::from_millis(rest.updated_at),
        first_failed_at: time(rest.first_failed_at),
        last_error: last_error(rest.error_kind, rest.error_message, time(rest.error_at)),
        history: rest.history.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default(),
        version: due.version + 1,
        locked_by: Some(by.0),
        locked_at: Some(by.1),
        stop: stop_request(rest.stop),
        notified_at: time(rest.notified_at),
        traceparent: rest.traceparent,
        origin_id: rest.origin_id.map(TaskId::from_i64),
        created_by: rest.created_by,
        updated_by: rest.updated_by,
    })
}
