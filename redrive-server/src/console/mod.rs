//! The console: pages for people, rendered here, under `/`. They do what the API does, by the same functions of the store, with
//! the same audit. Without JavaScript they can be read and used; with it they follow what happens.
//!
//! | file | what |
//! | --- | --- |
//! | `visit`, `session`, `login` | who looks, how they like it, and that forms are theirs |
//! | `words` | every word of every page, in English and Chinese |
//! | `fields`, `filter`, `address` | queries and forms; which tasks or letters a page is about; where it was asked for |
//! | `kept` | what takes long to find out |
//! | `html`, `chart`, `policy` | times, counts, curves and policies as people read them |
//! | `needs` | what needs somebody |
//! | `overview`, `tasks`, `ended`, `task`, `dead`, `bulk` | the pages: what runs, waits, has ended and has failed |
//! | `methods`, `sagas`, `saga`, `guards`, `nodes`, `channels` | what holds it back, flows, tables, who works, who is told |
//! | `settings`, `audit` | what holds, and who did what |
//! | `graph` | the steps of a saga, drawn |
//! | `assets` | styles and scripts |
//!
//! # A new page
//!
//! 1. Its words: two texts each in [`words`]. A word that no page uses is a warning of the compiler.
//! 2. `templates/things.html`: `{% extends "layout.html" %}`, with the blocks `title` and `main`. `{{ f.w.something }}` is a word,
//!    `{{ html::ago(time) }}` a time, `{{ html::count(n) }}` a count. Values are escaped. No `style=`, no `on…=`, no inline
//!    script: the policy in [`POLICY`] forbids them. A form that changes something is `method="post"` and has
//!    `{% include "csrf.html" %}`; buttons stand in `{% if f.is_operator() %}`.
//! 3. `things.rs`: a struct with `f: Frame` and what the page shows, `#[derive(Template)] #[template(path = "things.html")]`, and
//!    a handler that takes a [`Visit`] (looking) or an [`Act`] (doing: POST, checked, operators only; `act.admin(&app)` for more).
//!    It answers with `frame.show(&page)` or, after something was done, `frame.go("/things", Said::…, &id)`. Problems are
//!    returned as they are: [`dress`] makes pages of them.
//! 4. Its routes in [`routes`], and its place in [`menu`].
//! 5. Live: `data-live="all"` (or a task's id, or `gates`) on the page's `<main>` by the block `live`.
//! 6. Its address in `tests/console.rs` or `tests/console_operator.rs`, where all pages are tried with markup in every value, as a viewer,
//!    in both languages; and in `tests/browser/pages.rs`, where they are looked at.

mod address;
mod assets;
mod audit;
mod bulk;
mod channels;
mod chart;
mod dead;
mod ended;
mod fields;
mod filter;
mod graph;
mod guards;
mod html;
mod kept;
mod login;
mod methods;
mod needs;
mod nodes;
mod overview;
mod policy;
mod saga;
mod sagas;
mod session;
mod settings;
mod task;
mod tasks;
mod visit;
mod words;

use askama::Template;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};

use crate::server::App;
use crate::server::problem::{Problem, no_such_route};

use kept::Kept;
use overview::Counts;
use redrive::ServerSettings;
use redrive::store::DeadGroups;
use visit::Frame;

pub(crate) use session::Sealer;
pub(crate) use visit::token_of;

/// What a page may load: what is served here, and nothing written into it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// What takes long to find out.
#[derive(Default)]
pub(crate) struct Memory {
    counts: Kept<Counts>,
    groups: Kept<DeadGroups>,
    guards: guards::Tables,
}

/// The pages of the menu, in their order.
fn menu(f: &Frame) -> Vec<(&'static str, &'static str)> {
    let mut pages = vec![
        ("/", f.w.overview),
        ("/tasks", f.w.tasks),
        ("/dead", f.w.dead),
        ("/methods", f.w.methods),
        ("/sagas", f.w.sagas),
        ("/guards", f.w.guards),
        ("/nodes", f.w.nodes),
        ("/channels", f.w.channels),
    ];
    // As in the API, these are not for everybody.
    pages.extend(f.is_operator().then_some(("/settings", f.w.settings)));
    pages.extend(f.is_admin().then_some(("/audit", f.w.audit)));
    pages
}

/// Bytes of a form that anybody can send: a token, or a taste.
const LONGEST_OF_ANYBODY: usize = 16 * 1024;
/// Bytes of other forms: the input of a saga may have 1 MiB, and be three times as long in a form.
const LONGEST_FORM: usize = 4 * 1024 * 1024;

pub(crate) fn routes(app: &App, limits: &ServerSettings) -> Router<App> {
    let body = |most: usize| DefaultBodyLimit::max(most.min(limits.max_body));
    let of_anybody = Router::new()
        .route("/login", get(login::show).post(login::log_in))
        .route("/preferences", post(login::prefer))
        .layer(body(LONGEST_OF_ANYBODY));
    let quick = Router::new()
        .route("/", get(overview::show))
        .route("/logout", post(login::log_out))
        .route("/tasks", get(tasks::list))
        .route("/tasks/ended", get(ended::list))
        .route("/tasks/{id}", get(task::show))
        .route("/tasks/{id}/{action}", post(task::act))
        .route("/dead", get(dead::list))
        .route("/dead/{id}", get(task::show))
        .route("/dead/{id}/{action}", post(task::act))
        .route("/methods", get(methods::show))
        .route("/methods/{method}/{action}", post(methods::act))
        .route("/gates", get(methods::gates_are_there))
        .route("/gates/{gate}/{action}", post(methods::act_on_gate))
        .route("/sagas", get(sagas::list))
        .route("/sagas/{id}", get(saga::show))
        .route("/sagas/{id}/kill", get(saga::ask_kill).post(saga::kill))
        .route("/sagas/{id}/{action}", post(saga::act))
        .route("/guards", get(guards::list))
        .route("/guards/{service}", get(guards::show))
        .route("/guards/{service}/rows/{id}", get(guards::show_row))
        .route("/guards/{service}/rows/{id}/success", post(guards::success))
        .route("/nodes", get(nodes::show))
        .route("/settings", get(settings::show).post(settings::save))
        .route("/settings/change", get(settings::change))
        .route("/audit", get(audit::list))
        .route("/channels", get(channels::show))
        .layer(body(LONGEST_FORM))
        .merge(of_anybody)
        .layer(from_fn_with_state(limits.request_timeout, crate::server::in_time));
    // What may rightly take long.
    let patient = Router::new()
        .route("/tasks/bulk", get(bulk::ask_tasks).post(bulk::run_tasks))
        .route("/dead/bulk", get(bulk::ask_dead).post(bulk::run_dead))
        .route("/channels/{name}/test", post(channels::test))
        .layer(body(LONGEST_FORM));
    let pages = quick.merge(patient).layer(from_fn_with_state(app.clone(), dress));
    pages.route("/assets/{version}/{name}", get(assets::serve))
}

/// Paths that are taken, for who has routes of their own.
pub(crate) const PATHS: [&str; 18] = [
    "/",
    "/login",
    "/logout",
    "/preferences",
    "/tasks",
    "/tasks/bulk",
    "/tasks/ended",
    "/dead",
    "/dead/bulk",
    "/methods",
    "/gates",
    "/sagas",
    "/guards",
    "/nodes",
    "/settings",
    "/settings/change",
    "/audit",
    "/channels",
];

/// A page that there is not; programs are told as everywhere.
pub(crate) async fn no_such_page(State(app): State<App>, frame: Frame, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let problem = no_such_route(parts.uri.clone()).await.into_response();
    match takes_html(&parts.headers) && !parts.uri.path().starts_with("/api/") {
        true => dressed(&frame.of_whom(&app, &parts).await, problem, true),
        false => problem,
    }
}

fn takes_html(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).is_some_and(|kinds| kinds.contains("text/html"))
}

/// A script that follows something line by line: it says itself what is wrong.
fn takes_lines(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).is_some_and(|kinds| kinds == "application/x-ndjson")
}

/// A page that shows a form again, with what was typed and why it was not taken.
fn answered(wrong: Option<&Problem>, page: Response) -> Response {
    let status = wrong.and_then(|problem| StatusCode::from_u16(problem.status).ok());
    match status {
        Some(status) => (status, page).into_response(),
        None => page,
    }
}

/// Whether a problem is with what was typed: then its form is shown again.
fn is_typed_wrong(problem: &Problem) -> bool {
    matches!(problem.status, 400 | 422)
}

/// What every page is sent with; and problems as pages.
async fn dress(State(app): State<App>, frame: Frame, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let frame = frame.of_whom(&app, &parts).await;
    let is_page = !takes_lines(&parts.headers);
    dressed(&frame, next.run(Request::from_parts(parts, body)).await, is_page)
}

#[derive(Template)]
#[template(path = "problem.html")]
struct Sorry {
    f: Frame,
    title: &'static str,
    advice: &'static str,
    problem: Problem,
}

fn dressed(frame: &Frame, response: Response, is_page: bool) -> Response {
    let status = response.status();
    let mut response = match response.extensions().get::<Problem>().filter(|_| is_page).cloned() {
        Some(problem) => {
            let (title, advice) = frame.w.sorry(problem.code, problem.status);
            (status, frame.show(&Sorry { f: frame.clone(), title, advice, problem })).into_response()
        }
        None => response,
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
