//! Guarded tables: how many rows are in which state, those that need people, and one row with what keeps it from being retried.
//!
//! Rows are business data: like params, operators and admins see them, viewers see counts.
//!
//! *Failure.* A business's database that hangs or is slow takes nothing with it: each table is counted by itself, no further than
//! people read, at most once at a time for all who look, and a table that does not answer says so.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use redrive::guard::{GuardedTable, ListRequest, NotScanned, err_status};
use redrive::store::Role;
use serde_json::{Map, Value};

use crate::server::App;
use crate::server::guards::{self, Guarded};
use crate::server::input::Names;
use crate::server::problem::Answer;

use super::fields::{Fields, segment};
use super::html::{self, Html};
use super::kept::Kept;
use super::tasks::tag;
use super::visit::{Act, Frame, Said, Visit};
use super::words::{Words, fill};

const PAGE: u64 = 50;
/// States in the order of their urgency.
const STATES: [i64; 4] =
    [err_status::MANUAL, err_status::ABNORMAL, err_status::AUTO_SUCCESS, err_status::MANUAL_SUCCESS];

/// What is known of each table, by its service.
pub(super) type Tables = Mutex<HashMap<String, Kept<Guarded>>>;

/// A table with its counts, as they are or were a moment ago.
async fn counted(app: &App, table: GuardedTable) -> redrive::Result<Arc<Guarded>> {
    let kept = {
        let mut tables = app.memory.guards.lock().unwrap_or_else(PoisonError::into_inner);
        tables.entry(table.service_name().to_owned()).or_default().clone()
    };
    kept.get(&app.clock, Box::pin(async move { Ok(guards::look(&table).await) })).await
}

/// All tables, those that are not guarded just now last.
pub(super) async fn all(app: &App) -> redrive::Result<Vec<Arc<Guarded>>> {
    let guards = app.guards().await?;
    let counted = guards.all().into_iter().map(|table| counted(app, table));
    let mut all = futures_util::future::try_join_all(counted).await?;
    all.extend(guards.broken().into_iter().map(|broken| Arc::new(guards::broken(broken))));
    Ok(all)
}

#[derive(Template)]
#[template(path = "guards.html")]
struct Page {
    f: Frame,
    tables: Vec<Table>,
}

struct Table {
    service: String,
    link: String,
    table: String,
    database: String,
    trouble: Option<String>,
    class: &'static str,
    counts: Vec<Count>,
}

struct Count {
    name: &'static str,
    code: i64,
    n: String,
    link: String,
    class: &'static str,
    is_here: bool,
}

pub(super) async fn list(State(app): State<App>, visit: Visit) -> Answer<Response> {
    let f = visit.frame;
    let mut all = self::all(&app).await?;
    let needing = |guarded: &Guarded| guarded.counts.get("4001").copied().unwrap_or(0);
    all.sort_by_key(|guarded| (guarded.trouble.is_none(), std::cmp::Reverse(needing(guarded))));
    let table = |guarded: &Arc<Guarded>| Table {
        link: link(&guarded.service_name),
        class: if guarded.trouble.is_some() || needing(guarded) > 0 { "bad" } else { "" },
        counts: counts(guarded, 0, f.w),
        service: guarded.service_name.clone(),
        table: guarded.table.clone(),
        database: if f.is_operator() { guarded.database.clone() } else { String::new() },
        trouble: trouble(guarded, &f),
    };
    let page = Page { tables: all.iter().map(table).collect(), f: f.clone() };
    Ok(f.show(&page))
}

/// Why a table is not guarded, for those who may know where its database is; others are told that it is not.
pub(super) fn trouble(guarded: &Guarded, f: &Frame) -> Option<String> {
    guarded.trouble.as_ref().map(|why| if f.is_operator() { why.clone() } else { f.w.guard_hidden.to_owned() })
}

pub(super) fn link(service: &str) -> String {
    format!("/guards/{}", segment(service))
}

fn counts(guarded: &Guarded, here: i64, w: &Words) -> Vec<Count> {
    let one = |code: i64| {
        let n = guarded.counts.get(&code.to_string()).copied().unwrap_or(0);
        let class = match code {
            _ if n == 0 => "",
            err_status::MANUAL => "bad",
            err_status::ABNORMAL => "warn",
            _ => "",
        };
        let link = format!("{}?status={code}", link(&guarded.service_name));
        Count { name: w.err_status(code), code, n: html::up_to(n), link, class, is_here: code == here }
    };
    STATES.map(one).into()
}

#[derive(Template)]
#[template(path = "guard.html")]
struct One {
    f: Frame,
    service: String,
    table: String,
    trouble: Option<String>,
    counts: Vec<Count>,
    status: &'static str,
    columns: Vec<(String, String)>,
    rows: Vec<Row>,
    newer: Option<String>,
    older: Option<String>,
}

struct Row {
    id: String,
    link: String,
    cells: Vec<(String, String)>,
}

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Names([service]): Names<1>,
    asked: Fields,
) -> Answer<Response> {
    let f = visit.frame;
    let table = guards::find(&app, &service, &visit.who).await?;
    let guarded = counted(&app, table.clone()).await?;
    let fullest = STATES.into_iter().find(|code| guarded.counts.get(&code.to_string()).is_some_and(|n| *n > 0));
    let status = asked.parsed("status")?.or(fullest).unwrap_or(err_status::MANUAL);
    let n = asked.parsed::<u64>("page")?.unwrap_or(1);
    let (mut rows, mut columns, mut is_more) = (Vec::new(), Vec::new(), false);
    if f.is_operator() && guarded.trouble.is_none() {
        let request = ListRequest {
            page_num: n,
            page_size: PAGE,
            service_name: Some(service.clone()),
            err_status: Some(status),
            ..ListRequest::default()
        };
        let found = app.guards().await?.look(&request).await?;
        is_more = found.total > n * PAGE;
        let comments = found.column_comments.get(table.table_name());
        columns = named(&found.records, &table, comments, f.w);
        rows = found.records.iter().map(|record| row(record, &columns, &table)).collect();
    }
    let at = |page: u64| format!("{}?status={status}&page={page}", link(&service));
    let page = One {
        counts: counts(&guarded, status, f.w),
        status: f.w.err_status(status),
        table: guarded.table.clone(),
        trouble: trouble(&guarded, &f),
        columns,
        rows,
        newer: (n > 1).then(|| at(n - 1)),
        older: is_more.then(|| at(n + 1)),
        service,
        f: f.clone(),
    };
    Ok(f.show(&page))
}

/// What the guard itself keeps in a row, and people look for in a list.
fn own(w: &Words) -> [(&'static str, &'static str); 5] {
    [
        ("err_start_time", w.of_start_time),
        ("err_retry_count", w.of_retry_count),
        ("err_next_retry_time", w.of_next_retry),
        ("err_manual_notify_count", w.of_notify_count),
        ("err_next_remind_staff_time", w.of_next_remind),
    ]
}
/// So many of the business's own columns fit beside them.
const MOST_COLUMNS: usize = 5;

/// The columns of a list with their comments: some of the business's own, then the guard's that say something here.
fn named(
    records: &[Map<String, Value>],
    table: &GuardedTable,
    comments: Option<&std::collections::BTreeMap<String, String>>,
    w: &Words,
) -> Vec<(String, String)> {
    let ours = ["table", "serviceName", "manualSuccessRoute"];
    let first = records.iter().take(1).flat_map(Map::keys);
    let business =
        first.filter(|name| !name.starts_with("err_") && !ours.contains(&name.as_str()) && *name != table.id_field());
    let said = |name: &str| records.iter().any(|record| record.get(name).is_some_and(|value| !value.is_null()));
    let own = own(w).into_iter().filter(|(name, _)| said(name)).map(|(name, word)| (name.into(), word.into()));
    let comment = |name: &String| {
        let comment = comments.and_then(|comments| comments.get(name)).cloned().unwrap_or_default();
        (name.clone(), comment)
    };
    business.take(MOST_COLUMNS).map(comment).chain(own).collect()
}

fn row(record: &Map<String, Value>, columns: &[(String, String)], table: &GuardedTable) -> Row {
    let id = record.get(table.id_field()).map(text).unwrap_or_default();
    let label = |name: &String, comment: &String| if comment.is_empty() { name.clone() } else { comment.clone() };
    let cell =
        |(name, comment): &(String, String)| (label(name, comment), record.get(name).map(text).unwrap_or_default());
    let link = format!("{}/rows/{}", link(table.service_name()), segment(&id));
    Row { link, id, cells: columns.iter().map(cell).collect() }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "–".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[derive(Template)]
#[template(path = "guard_row.html")]
struct OneRow {
    f: Frame,
    service: String,
    back: String,
    link: String,
    id: String,
    state: Html,
    why: Vec<String>,
    columns: Vec<(String, String)>,
    /// Whether people may still say that it is successful.
    is_open: bool,
}

pub(super) async fn show_row(State(app): State<App>, visit: Visit, Names([service, id]): Names<2>) -> Answer<Response> {
    visit.needs(&app, Role::Operator).await?;
    let f = visit.frame;
    let shown = guards::find(&app, &service, &visit.who).await?.show(id).await?;
    let status = shown.columns.get("err_status").and_then(Value::as_i64);
    let page = OneRow {
        back: link(&service),
        link: format!("{}/rows/{}", link(&service), segment(&shown.id.to_string())),
        id: shown.id.to_string(),
        state: status.map_or_else(|| tag("", f.w.err_never), |code| state(code, f.w)),
        why: match shown.not_scanned.as_slice() {
            [] => vec![f.w.row_next_poll.to_owned()],
            conditions => conditions.iter().map(|condition| in_words(condition, f.w)).collect(),
        },
        columns: shown.columns.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
        is_open: matches!(status, Some(err_status::ABNORMAL | err_status::MANUAL)),
        service,
        f: f.clone(),
    };
    Ok(f.show(&page))
}

fn state(code: i64, w: &Words) -> Html {
    let class = match code {
        err_status::MANUAL => "bad",
        err_status::ABNORMAL => "warn",
        err_status::AUTO_SUCCESS | err_status::MANUAL_SUCCESS => "good",
        _ => "",
    };
    tag(class, &format!("{code} {}", w.err_status(code)))
}

/// What keeps a row from being scanned.
fn in_words(condition: &NotScanned, w: &Words) -> String {
    match condition {
        NotScanned::NotAbnormal { err_status: None } => w.not_marked.to_owned(),
        NotScanned::NotAbnormal { err_status: Some(code) } => fill(w.not_abnormal, &[code]),
        NotScanned::NotDue { err_next_retry_time } => fill(w.not_due, &[err_next_retry_time]),
        NotScanned::NotToBeTold { err_next_remind_staff_time } => fill(w.not_told, &[err_next_remind_staff_time]),
        NotScanned::NotFailed { status, is_success: true, .. } => {
            fill(w.is_success, &[&status.as_deref().unwrap_or("NULL")])
        }
        NotScanned::NotFailed { status, fail_value, .. } => {
            fill(w.not_failed, &[&status.as_deref().unwrap_or("NULL"), fail_value])
        }
        other => other.to_string(),
    }
}

/// A person says that a row is successful.
pub(super) async fn success(State(app): State<App>, Names([service, id]): Names<2>, act: Act) -> Answer<Response> {
    let id = guards::find(&app, &service, &act.visit.who).await?.manual_success(id, &act.visit.who.name).await?;
    let to = format!("{}/rows/{}", link(&service), segment(&id.to_string()));
    Ok(act.visit.frame.go(&to, Said::RowSuccessful, &id.to_string()))
}
