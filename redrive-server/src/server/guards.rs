//! Guarded tables: rows of business tables that failed, and what people say of them.
//!
//! Two faces: ours under `/api/v1/guards`, and the guards' own routes with the envelope of the original framework (`code`, `msg`,
//! `data`): the list, and one for each guard that names one.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{FromRequestParts as _, State};
use axum::http::StatusCode;
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse as _, Response};
use axum::{Json as Shows, Router};
use futures_util::future::join_all;
use redrive::guard::{
    self, BlockedRow, BrokenGuard, CheckUser, GuardedTable, Guards, Inspection, Marked, RowId, RowValue, UserBlocked,
};
use redrive::store::{AuditEntry, Role};
use redrive::unbroken;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Operator, Viewer};
use super::input::{Json, Names};
use super::problem::{Answer, Problem};
use super::{App, Caller};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(check))
        .routes(routes!(show))
        .routes(routes!(mark_abnormal))
        .routes(routes!(check_user))
        .routes(routes!(success))
}

/// A guarded table.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Guarded {
    pub(crate) service_name: String,
    pub(crate) table: String,
    /// The database, without its password; empty if the table is not guarded just now, and for viewers.
    pub(crate) database: String,
    /// Where people say that a row is successful.
    pub(crate) manual_success_route: Option<String>,
    /// How many rows are in which `err_status`, up to 100,000 of each. Those that never failed are not counted.
    pub(crate) counts: BTreeMap<String, u64>,
    /// Why it is not guarded, or cannot be looked at, just now; viewers are told that it is so.
    pub(crate) trouble: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct AllGuarded {
    guards: Vec<Guarded>,
}

/// List guarded tables
#[utoipa::path(get, path = "/guards", tag = "guards", responses((status = 200, body = AllGuarded)))]
async fn list(State(app): State<App>, Viewer(who): Viewer) -> Answer<Shows<AllGuarded>> {
    let mut guards = all(&app).await?;
    if !sees_rows(&who) {
        guards.iter_mut().for_each(|guarded| {
            guarded.database.clear();
            guarded.trouble.iter_mut().for_each(|trouble| *trouble = HIDDEN.into());
        });
    }
    Ok(Shows(AllGuarded { guards }))
}

/// Rows are business data: like params, they are not for viewers. Nor is where they are.
fn sees_rows(who: &Caller) -> bool {
    who.role >= Role::Operator
}

/// Instead of why a database cannot be used, which says where it is.
const HIDDEN: &str = "its database cannot be used; operators see why";

/// A problem with a table, as this caller may know it.
fn told(problem: Problem, who: &Caller) -> Problem {
    match problem.code {
        "guard_broken" | "database_unavailable" if !sees_rows(who) => {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, problem.code, HIDDEN)
        }
        _ => problem,
    }
}

/// A business's database that has not answered for so long is said not to answer: one that hangs keeps nobody from seeing the others.
const PATIENCE: Duration = Duration::from_secs(2);

/// All guarded tables, with what is wrong with them.
async fn all(app: &App) -> Answer<Vec<Guarded>> {
    let guards = app.guards().await?;
    let mut all = join_all(guards.all().iter().map(look)).await;
    all.extend(guards.broken().into_iter().map(broken));
    Ok(all)
}

/// A table as it is, or why that cannot be said.
pub(crate) async fn look(table: &GuardedTable) -> Guarded {
    let counts = match tokio::time::timeout(PATIENCE, table.counts()).await {
        Ok(counts) => counts.map_err(|e| e.to_string()),
        Err(_) => Err(format!("its database has not answered for {} s", PATIENCE.as_secs())),
    };
    let (counts, trouble) = counts.map_or_else(|why| (BTreeMap::new(), Some(why)), |counts| (counts.0, None));
    Guarded {
        service_name: table.service_name().into(),
        table: table.table_name().into(),
        database: table.database().into(),
        manual_success_route: table.manual_success_route(),
        counts: counts.into_iter().map(|(status, n)| (status.to_string(), n)).collect(),
        trouble,
    }
}

/// One that is not guarded just now.
pub(crate) fn broken(broken: BrokenGuard) -> Guarded {
    Guarded {
        service_name: broken.service_name,
        table: broken.table,
        database: String::new(),
        manual_success_route: None,
        counts: BTreeMap::new(),
        trouble: Some(broken.why),
    }
}

/// What a guarded table has and lacks.
#[derive(Debug, Serialize, ToSchema)]
struct Checked {
    service_name: String,
    table: String,
    /// Whether it can be guarded as it is.
    usable: bool,
    /// All that is missing or wrong, the index included, in words.
    problems: Vec<String>,
    /// What to run for it.
    sql: Vec<String>,
}

/// Check a guarded table
///
/// What is missing in it, and the SQL that adds it. Changes nothing.
#[utoipa::path(get, path = "/guards/{service}/check", tag = "guards", params(("service" = String, Path)),
    responses((status = 200, body = Checked)))]
async fn check(State(app): State<App>, Viewer(who): Viewer, Names([service]): Names<1>) -> Answer<Shows<Checked>> {
    let found = inspect(&app, &service).await.map_err(|problem| told(problem, &who))?.ok_or_else(|| none(&service))?;
    let index =
        found.missing_index.then(|| "the index for the scans is missing: each poll reads the whole table".into());
    let columns = found.missing_columns.iter().map(|column| format!("the column {column} is missing"));
    Ok(Shows(Checked {
        service_name: service,
        usable: found.problems.is_empty() && found.missing_columns.is_empty(),
        problems: found.problems.iter().cloned().chain(columns).chain(index).collect(),
        table: found.table,
        sql: found.sql,
    }))
}

/// By the connections that its guard has; a table that is not guarded just now has none, and gets some for this look. One such look
/// at a time: however many ask, the business's database is not filled with connections.
async fn inspect(app: &App, service: &str) -> Answer<Option<Inspection>> {
    if let Some(table) = app.guards().await?.get(service) {
        return Ok(Some(table.inspect().await?));
    }
    let _alone = app.inspecting.lock().await;
    Ok(crate::guards::inspect(&app.settings(), &app.store, service).await?)
}

/// A row of a guarded table.
#[derive(Debug, Serialize, ToSchema)]
struct Row {
    /// Its columns.
    #[schema(value_type = Object)]
    row: Map<String, Value>,
    /// What keeps it from being retried, or from being told of; or what will happen to it.
    why: Vec<String>,
}

/// Show a row
///
/// And which condition keeps it from being scanned.
#[utoipa::path(get, path = "/guards/{service}/rows/{dataId}", tag = "guards",
    params(("service" = String, Path), ("dataId" = String, Path)), responses((status = 200, body = Row)))]
async fn show(State(app): State<App>, Operator(who): Operator, Names([service, id]): Names<2>) -> Answer<Shows<Row>> {
    let shown = find(&app, &service, &who).await?.show(id).await?;
    let why = match shown.not_scanned.as_slice() {
        [] => vec!["the next poll takes it up".into()],
        conditions => conditions.iter().map(ToString::to_string).collect(),
    };
    Ok(Shows(Row { row: shown.columns, why }))
}

/// Which row.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Which {
    /// Its primary key: a number or a text.
    #[serde(rename = "dataId")]
    #[schema(value_type = Object)]
    data_id: Value,
    /// Only if it is this user's.
    #[schema(value_type = Object)]
    user: Option<Value>,
}

#[derive(Debug, Serialize, ToSchema)]
struct MarkedAs {
    /// Whether the row was marked.
    changed: bool,
    /// What became of it; if it was not marked, why that can be.
    detail: String,
}

/// Mark a row abnormal
///
/// It is retried from now on (4000). A row that is abnormal already, or is not there (yet), is not changed: the answer says so.
#[utoipa::path(post, path = "/guards/{service}/mark-abnormal", tag = "guards", params(("service" = String, Path)),
    request_body = Which, responses((status = 200, body = MarkedAs)))]
async fn mark_abnormal(
    State(app): State<App>,
    Operator(who): Operator,
    Names([service]): Names<1>,
    Json(which): Json<Which>,
) -> Answer<Shows<MarkedAs>> {
    let (table, id) = (find(&app, &service, &who).await?, id_of(&which.data_id)?);
    let user = which.user.as_ref().map(value).transpose()?;
    let entry = AuditEntry::new(&who.name, "guard.mark_abnormal", format!("{service} {id}"));
    let marked = unbroken(marked(app, table, id, user, entry)).await?;
    Ok(Shows(MarkedAs { changed: marked == Marked::Changed, detail: marked.to_string() }))
}

/// Marks it and notes who did.
async fn marked(
    app: App,
    table: GuardedTable,
    id: RowId,
    user: Option<RowValue>,
    entry: AuditEntry,
) -> redrive::Result<Marked> {
    let marked = match user {
        Some(user) => table.mark_abnormal_of(id, user).await?,
        None => table.mark_abnormal(id).await?,
    };
    if marked == Marked::Changed {
        app.store.audit(&entry, app.clock.now()).await?;
    }
    Ok(marked)
}

/// Whose rows.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Whose {
    /// As the user field has it: a number or a text.
    #[schema(value_type = Object)]
    user: Value,
}

#[derive(Debug, Serialize, ToSchema)]
struct Blocked {
    /// Whether the user has rows that are retried (4000) or wait for people (4001).
    blocked: bool,
    /// The same in words.
    detail: Option<String>,
    /// The oldest of those rows. Viewers are told how many there are, not which.
    rows: Vec<BlockingRow>,
}

impl Blocked {
    fn by(blocked: UserBlocked, who: &Caller) -> Self {
        if !sees_rows(who) {
            let detail = format!("{} rows of the user are abnormal", blocked.total);
            return Self { blocked: true, detail: Some(detail), rows: Vec::new() };
        }
        let detail = Some(blocked.to_string());
        let row = |row: BlockedRow| BlockingRow {
            data_id: row.id,
            err_status: row.err_status,
            err_start_time: row.err_start_time,
        };
        Self { blocked: true, detail, rows: blocked.rows.into_iter().map(row).collect() }
    }
}

#[derive(Debug, Serialize, ToSchema)]
struct BlockingRow {
    #[serde(rename = "dataId")]
    #[schema(value_type = Object)]
    data_id: RowId,
    err_status: i64,
    err_start_time: Option<String>,
}

/// Check a user
///
/// Asked before a user may begin something new: rows of theirs that are abnormal block them.
#[utoipa::path(post, path = "/guards/{service}/check-user", tag = "guards", params(("service" = String, Path)),
    request_body = Whose, responses((status = 200, body = Blocked)))]
async fn check_user(
    State(app): State<App>,
    Viewer(who): Viewer,
    Names([service]): Names<1>,
    Json(whose): Json<Whose>,
) -> Answer<Shows<Blocked>> {
    match find(&app, &service, &who).await?.check_user_err(value(&whose.user)?).await {
        Ok(()) => Ok(Shows(Blocked { blocked: false, detail: None, rows: Vec::new() })),
        Err(CheckUser::Failed(e)) => Err(told(e.into(), &who)),
        Err(CheckUser::Blocked(blocked)) => Ok(Shows(Blocked::by(blocked, &who))),
    }
}

#[derive(Debug, Serialize, ToSchema)]
struct Done {
    #[serde(rename = "dataId")]
    #[schema(value_type = Object)]
    data_id: RowId,
}

/// Say that a row is successful
///
/// As the guard's own handler does it; then it is 2002, and its business status that of success.
#[utoipa::path(post, path = "/guards/{service}/success", tag = "guards", params(("service" = String, Path)),
    request_body = Which, responses((status = 200, body = Done)))]
async fn success(
    State(app): State<App>,
    Operator(who): Operator,
    Names([service]): Names<1>,
    Json(which): Json<Which>,
) -> Answer<Shows<Done>> {
    let id = find(&app, &service, &who).await?.manual_success(id_of(&which.data_id)?, &who.name).await?;
    Ok(Shows(Done { data_id: id }))
}

/// The routes that are not ours but the guards' own: the list, and one for each guard that names one. They have as much time as ours.
pub(super) fn own_routes(app: &App, guards: &Guards, limit: Duration) -> Router {
    let app = app.clone();
    let routes = guards.router_with(move |parts| {
        let app = app.clone();
        async move {
            let mut parts = parts;
            let who = Operator::from_request_parts(&mut parts, &app).await;
            who.map(|Operator(who)| guard::Caller(who.name)).map_err(Problem::into_envelope)
        }
    });
    routes.layer(from_fn_with_state(limit, super::in_time)).layer(map_response(enveloped))
}

/// What is ours to say, in the form of their answers.
async fn enveloped(mut answer: Response) -> Response {
    match answer.extensions_mut().remove::<Problem>() {
        Some(problem) => problem.into_envelope().into_response(),
        None => answer,
    }
}

pub(crate) async fn find(app: &App, service: &str, who: &Caller) -> Answer<GuardedTable> {
    let guards = app.guards().await?;
    if let Some(table) = guards.get(service) {
        return Ok(table);
    }
    let broken = guards.broken().into_iter().find(|broken| broken.service_name == service);
    let broken = broken.ok_or_else(|| none(service))?;
    Err(told(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "guard_broken", broken.why), who))
}

fn none(service: &str) -> Problem {
    Problem::not_found("guard", format!("{service:?}"))
}

fn id_of(json: &Value) -> Answer<RowId> {
    match value(json) {
        Ok(RowValue::Int(id)) => Ok(id.into()),
        Ok(RowValue::Text(id)) => Ok(id.into()),
        Err(_) => Err(redrive::Error::invalid("dataId", "must be a text or a whole number").into()),
    }
}

/// A text or a whole number.
fn value(json: &Value) -> Answer<RowValue> {
    match (json, json.as_i64()) {
        (Value::String(text), _) => Ok(text.as_str().into()),
        (_, Some(n)) => Ok(n.into()),
        _ => Err(redrive::Error::invalid("user", "must be a text or a whole number").into()),
    }
}
