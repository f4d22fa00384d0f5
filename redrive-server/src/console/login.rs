//! Logging in with a token, and out; language and theme.

use askama::Template;
use axum::extract::{FromRequestParts as _, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Redirect, Response};

use crate::server::App;
use crate::server::auth;
use crate::server::problem::{Answer, Problem};

use super::fields::{Fields, Form};
use super::visit::{Frame, is_from_here, logged_in};

#[derive(Template)]
#[template(path = "login.html")]
struct Login {
    f: Frame,
    next: String,
    /// What was wrong with the last try.
    wrong: Option<&'static str>,
}

pub(super) async fn show(State(app): State<App>, frame: Frame, asked: Fields, parts: Parts) -> Answer<Response> {
    if logged_in(&app, &parts).await?.is_some() {
        return Ok(Redirect::to("/").into_response());
    }
    let next = asked.text("next").to_owned();
    Ok(frame.show(&Login { f: frame.clone(), next, wrong: None }))
}

pub(super) async fn log_in(State(app): State<App>, mut parts: Parts, Form(fields): Form) -> Answer<Response> {
    is_from_here(&parts)?;
    let Ok(frame) = Frame::from_request_parts(&mut parts, &app).await;
    let token = fields.text("token");
    let again = |wrong| {
        let next = fields.text("next").to_owned();
        let page = frame.show(&Login { f: frame.clone(), next, wrong: Some(wrong) });
        Ok((StatusCode::UNAUTHORIZED, page).into_response())
    };
    match auth::known(&app, &parts, Some(token)).await {
        Ok(_) => {}
        Err(Problem { code: "too_many_wrong_tokens", .. }) => return again(frame.w.login_wait),
        Err(Problem { code: "no_token", .. }) => return again(frame.w.login_wrong),
        Err(other) => return Err(other),
    }
    let none = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no_random", "the system gives no random numbers");
    let sealed = app.sealer().await?.seal(token, app.clock.now()).ok_or_else(none)?;
    Ok(frame.log_in(&sealed, fields.get("next").unwrap_or("/")))
}

pub(super) async fn log_out(frame: Frame, parts: Parts) -> Answer<Response> {
    is_from_here(&parts)?;
    Ok(frame.log_out())
}

pub(super) async fn prefer(frame: Frame, parts: Parts, Form(fields): Form) -> Answer<Response> {
    is_from_here(&parts)?;
    Ok(frame.prefer(&fields))
}
