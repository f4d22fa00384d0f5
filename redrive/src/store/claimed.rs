//! What a claim returns: the columns that nearly every task needs, and the rest as one JSON value that is NULL for a task
//! that has nothing there. Every column of every row costs time on both sides, on SQLite an allocation.

use std::time::Duration;

use serde_json::Value as Json;

use crate::clock::Timestamp;
use crate::id::TaskId;
use crate::task::{NodeNumber, Status, Task};

use super::db::{Columns, Dialect, Row};
use super::decode::{Cells, Decoder, quoted};
use super::hot::Due;
use super::row::{decode_business, decode_max_attempts, last_error, read_policy};

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
    attempts: i64,
    crashes: i64,
    postponements: i64,
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
    let text = |column: &str| ["kind", "msg", "history", "traceparent", "_by"].iter().any(|end| column.ends_with(end));
    let rest = REST.map(|(column, _)| match dialect {
        // JSON takes no bytes, and a value that somebody has stored as such must not stop the statement.
        Dialect::Sqlite if text(column) => format!("CAST({t}{column} AS TEXT)"),
        _ => format!("{t}{column}"),
    });
    let rest = rest.join(", ");
    let rest = match dialect {
        Dialect::Postgres => format!("json_build_array({rest})::text"),
        Dialect::Sqlite => format!("json_array({rest})"),
        Dialect::MySql => format!("CAST(JSON_ARRAY({rest}) AS CHAR)"),
    };
    let nothing = REST.map(|(column, nothing)| format!("{t}{column} {}", nothing.replace("{t}", t))).join(" AND ");
    let common = COMMON.map(|column| format!("{t}{column}")).join(", ");
    format!("{common}, CASE WHEN {nothing} THEN NULL ELSE {rest} END")
}

impl Rest {
    /// The same from JSON that is not what redrive writes: what cannot be decoded is noted.
    fn decode<C: Cells>(json: &str, noting: &mut Decoder<'_, C>) -> Self {
        let mut cells = JsonCells(serde_json::from_str::<Vec<Json>>(json).unwrap_or_default().into_iter());
        let mut c = Decoder::new(&mut cells);
        let mut names = REST.iter().map(|(column, _)| *column);
        let mut name = || names.next().unwrap_or_default();
        let rest = Self {
            attempts: c.int(name()),
            crashes: c.int(name()),
            postponements: c.int(name()),
            stop: c.int(name()),
            dedup_for: c.int(name()),
            updated_at: c.int(name()),
            max_duration: c.opt_int(name()),
            deadline: c.opt_int(name()),
            first_failed_at: c.opt_int(name()),
            error_kind: c.opt_text(name()),
            error_message: c.opt_text(name()),
            error_at: c.opt_int(name()),
            history: c.opt_text(name()),
            notified_at: c.opt_int(name()),
            traceparent: c.opt_text(name()),
            origin_id: c.opt_int(name()),
            created_by: c.opt_text(name()),
            updated_by: c.opt_text(name()),
        };
        noting.note_all(c);
        rest
    }
}

/// The values of a JSON array.
struct JsonCells(std::vec::IntoIter<Json>);

impl Cells for JsonCells {
    type Text = String;

    fn next_int(&mut self) -> Result<Option<i64>, String> {
        match self.0.next() {
            None | Some(Json::Null) => Ok(None),
            Some(Json::String(text)) => Err(quoted(&text)),
            Some(value) => value.as_i64().map(Some).ok_or_else(|| value.to_string()),
        }
    }

    fn next_text(&mut self) -> Result<Option<String>, String> {
        match self.0.next() {
            None | Some(Json::Null) => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(_) => Err("no text".into()),
        }
    }
}

/// A task from these columns, as the claim has made it; `due` says what it was before, from columns that follow if need be.
pub(super) fn read_claimed<'r>(
    row: &'r Row,
    due: impl FnOnce(TaskId, &mut Decoder<'_, Columns<'r>>) -> sqlx::Result<Due>,
    by: (NodeNumber, Timestamp),
) -> sqlx::Result<Task> {
    let mut columns = row.columns();
    let id = TaskId::from_i64(columns.int()?);
    let c = &mut Decoder::new(&mut columns);
    let method = c.text("method_name").to_owned();
    let params = c.text("params_json").to_owned();
    let key = c.opt_text("task_key").map(str::to_owned);
    let business = decode_business(c);
    let policy = c.opt_text("policy");
    let max_attempts = decode_max_attempts(c);
    let created_at = Timestamp::from_millis(c.int("created_at"));
    let rest = match c.opt_text("the rest of its columns") {
        None => Rest { updated_at: created_at.as_millis(), ..Rest::default() },
        Some(json) => serde_json::from_str(json).unwrap_or_else(|_| Rest::decode(json, c)),
    };
    let due = due(id, c)?;
    let max_duration = rest.max_duration.and_then(|ms| c.narrow("max_retry_duration", ms));
    let time = |ms: Option<i64>| ms.map(Timestamp::from_millis);
    let mut task = Task {
        id,
        lane: due.lane,
        method,
        params,
        key,
        business,
        status: Status::Running,
        policy: read_policy(id, policy, max_attempts, max_duration.map(Duration::from_millis), time(rest.deadline)),
        attempts: c.narrow("attempt_count", rest.attempts).unwrap_or_default(),
        crashes: c.narrow("crashes", rest.crashes).unwrap_or_default(),
        postponements: c.narrow("postponements", rest.postponements).unwrap_or_default(),
        due: due.due,
        priority: due.priority,
        dedup_for: Duration::from_millis(c.narrow("dedup_for", rest.dedup_for).unwrap_or_default()),
        created_at,
        updated_at: Timestamp::from_millis(rest.updated_at),
        first_failed_at: time(rest.first_failed_at),
        last_error: last_error(rest.error_kind, rest.error_message, time(rest.error_at)),
        history: rest.history.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default(),
        version: due.version + 1,
        locked_by: Some(by.0),
        locked_at: Some(by.1),
        stop: c.stop("cancel_requested", rest.stop),
        notified_at: time(rest.notified_at),
        traceparent: rest.traceparent,
        origin_id: rest.origin_id.map(TaskId::from_i64),
        created_by: rest.created_by,
        updated_by: rest.updated_by,
        undecodable: None,
    };
    c.mark(&mut task);
    Ok(task)
}
