//! Who looks at a page, and how they like it: the extractors of all pages.
//!
//! *Invariants.* A page is shown to those who are logged in only ([`Visit`]); the others are sent to the log-in, and back. What
//! changes something is a POST ([`Act`]): it must come from our own pages, carry the session's own secret, and be of somebody
//! who may. Cookies that say something about taste (language, theme) or about what was just done are not trusted with anything:
//! the worst they can do is to show another of our own sentences.
//!
//! The cookie of a session is `SameSite=Lax`: a link in a mail at night must lead to the letter and not to the log-in.

use std::time::Duration;

use askama::Template;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{Html as Body, IntoResponse, Redirect, Response};
use redrive::Timestamp;
use redrive::store::Role;

use crate::server::auth::{self, find};
use crate::server::problem::{Answer, Problem};
use crate::server::{App, Caller};

use super::fields::{Fields, Form};
use super::session::{csrf, is_csrf};
use super::words::{Lang, Words};

const SESSION: &str = "redrive_session";
const LANG: &str = "redrive_lang";
const THEME: &str = "redrive_theme";
const SAID: &str = "redrive_said";
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// What every page has around it.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) lang: Lang,
    /// The words of that language.
    pub(crate) w: &'static Words,
    /// `light`, `dark`, or `auto`: as the system has it.
    pub(crate) theme: &'static str,
    pub(crate) who: Option<Caller>,
    /// What forms send along.
    pub(crate) csrf: String,
    /// Path and query.
    pub(crate) here: String,
    pub(crate) now: Timestamp,
    /// What was just done.
    pub(crate) said: Option<String>,
    is_https: bool,
}

impl Frame {
    fn of(parts: &Parts, now: Timestamp) -> Self {
        let lang = Lang::of(cookie(&parts.headers, LANG), parts.headers.get(header::ACCEPT_LANGUAGE));
        let theme = cookie(&parts.headers, THEME);
        let here = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        Self {
            lang,
            w: lang.words(),
            theme: THEMES.into_iter().find(|known| theme == Some(known)).unwrap_or("auto"),
            who: None,
            csrf: String::new(),
            here: if is_ours(here) { here.to_owned() } else { "/".into() },
            now,
            said: cookie(&parts.headers, SAID).and_then(|said| Said::read(said, lang.words())),
            is_https: is_https(&parts.headers),
        }
    }

    /// With whoever is logged in, if anybody is.
    pub(super) async fn of_whom(self, app: &App, parts: &Parts) -> Self {
        match logged_in(app, parts).await {
            Ok(Some((cookie, who))) => Self { csrf: csrf(&cookie), who: Some(who), ..self },
            _ => self,
        }
    }

    /// Whether this person sees params and buttons.
    pub(crate) fn is_operator(&self) -> bool {
        self.who.as_ref().is_some_and(|who| who.role >= Role::Operator)
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.who.as_ref().is_some_and(|who| who.role >= Role::Admin)
    }

    /// The pages, for the menu: address, name, whether it is this one.
    pub(crate) fn menu(&self) -> Vec<(&'static str, &'static str, bool)> {
        let path = self.here.split('?').next().unwrap_or_default();
        let is_here = |page: &str| path == page || (page != "/" && path.starts_with(&format!("{page}/")));
        super::menu(self).into_iter().map(|(page, name)| (page, name, is_here(page))).collect()
    }

    pub(crate) fn assets(&self) -> &'static str {
        &super::assets::VERSION
    }

    /// A page. What was said is said once.
    pub(crate) fn show(&self, page: &impl Template) -> Response {
        match page.render() {
            Ok(html) if self.said.is_some() => ([(header::SET_COOKIE, self.gone(SAID))], Body(html)).into_response(),
            Ok(html) => Body(html).into_response(),
            Err(e) => {
                tracing::error!(error = %e, "a page could not be written");
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the server's log").into_response()
            }
        }
    }

    /// Goes there, and says what was done.
    pub(crate) fn go(&self, to: &str, said: Said, about: &str) -> Response {
        let said = self.set(SAID, &format!("{}~{}", said.name(), plain(about)), Duration::from_secs(60));
        ([(header::SET_COOKIE, said)], Redirect::to(ours(to))).into_response()
    }

    pub(super) fn set(&self, name: &str, value: &str, age: Duration) -> HeaderValue {
        let secure = if self.is_https { "; Secure" } else { "" };
        let cookie = format!("{name}={value}; Path=/; Max-Age={}; HttpOnly; SameSite=Lax{secure}", age.as_secs());
        HeaderValue::try_from(cookie).unwrap_or(HeaderValue::from_static(""))
    }

    fn gone(&self, name: &str) -> HeaderValue {
        self.set(name, "", Duration::ZERO)
    }

    /// Somebody has logged in.
    pub(super) fn log_in(&self, sealed: &str, to: &str) -> Response {
        let session = self.set(SESSION, sealed, super::session::FOR);
        ([(header::SET_COOKIE, session)], Redirect::to(ours(to))).into_response()
    }

    pub(super) fn log_out(&self) -> Response {
        ([(header::SET_COOKIE, self.gone(SESSION))], Redirect::to("/login")).into_response()
    }

    /// How this person likes it from now on.
    pub(super) fn prefer(&self, fields: &Fields) -> Response {
        let mut response = Redirect::to(ours(fields.text("back"))).into_response();
        let lang = fields.get("lang").and_then(Lang::named).map(|lang| self.set(LANG, lang.code(), A_YEAR));
        let theme = THEMES.into_iter().find(|theme| fields.is("theme", theme));
        let theme = theme.map(|theme| self.set(THEME, theme, A_YEAR));
        lang.into_iter().chain(theme).for_each(|cookie| _ = response.headers_mut().append(header::SET_COOKIE, cookie));
        response
    }
}

const THEMES: [&str; 3] = ["auto", "light", "dark"];

impl FromRequestParts<App> for Frame {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Self::Rejection> {
        Ok(Self::of(parts, app.clock.now()))
    }
}

/// Someone who is logged in, looking at a page.
pub(crate) struct Visit {
    pub(crate) who: Caller,
    pub(crate) frame: Frame,
}

impl Visit {
    /// Some pages are not for everybody. Who is refused is in the audit, as in the API.
    pub(crate) async fn needs(&self, app: &App, wanted: Role) -> Answer<()> {
        if self.who.role >= wanted {
            return Ok(());
        }
        let path = self.frame.here.split('?').next().unwrap_or_default();
        Err(auth::deny(app, &self.who, "console.get", path, wanted).await)
    }
}

impl FromRequestParts<App> for Visit {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        let frame = Frame::of(parts, app.clock.now());
        let to_login = |frame: &Frame| {
            let back = if parts.method.is_safe() { frame.here.as_str() } else { "/" };
            Redirect::to(&format!("/login{}", Fields::default().with("next", Some(back)).query())).into_response()
        };
        let found = logged_in(app, parts).await.map_err(IntoResponse::into_response)?;
        let Some((cookie, who)) = found else { return Err(to_login(&frame)) };
        Ok(Self { frame: Frame { csrf: csrf(&cookie), who: Some(who.clone()), ..frame }, who })
    }
}

/// The session's cookie and whose it is.
pub(super) async fn logged_in(app: &App, parts: &Parts) -> Answer<Option<(String, Caller)>> {
    let Some(sealed) = cookie(&parts.headers, SESSION) else { return Ok(None) };
    let now = app.clock.now();
    let Some(token) = app.sealer().await?.open(sealed, now) else { return Ok(None) };
    let token = find(app, &token, now).await?;
    Ok(token.map(|token| (sealed.to_owned(), Caller { name: token.name, role: token.role })))
}

/// The token of whoever is logged in: the API takes it for looking.
pub(crate) async fn token_of(app: &App, headers: &HeaderMap) -> Answer<Option<String>> {
    match cookie(headers, SESSION) {
        Some(sealed) => Ok(app.sealer().await?.open(sealed, app.clock.now())),
        None => Ok(None),
    }
}

/// Someone who is logged in, doing something.
pub(crate) struct Act {
    pub(crate) visit: Visit,
    pub(crate) fields: Fields,
    parts: Parts,
}

impl FromRequest<App> for Act {
    type Rejection = Response;

    async fn from_request(request: Request, app: &App) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        is_from_here(&parts).map_err(IntoResponse::into_response)?;
        let visit = Visit::from_request_parts(&mut parts, app).await?;
        let form = Form::from_request(Request::from_parts(parts.clone(), body), app).await;
        let Form(fields) = form.map_err(IntoResponse::into_response)?;
        let cookie = cookie(&parts.headers, SESSION).unwrap_or_default();
        if !is_csrf(cookie, fields.text("csrf")) {
            let detail = "this form is not of your session any more; go back, load the page again and repeat it";
            return Err(Problem::new(StatusCode::FORBIDDEN, "wrong_form", detail).into_response());
        }
        let who = auth::may(app, &parts, visit.who.clone(), Role::Operator).await;
        who.map_err(IntoResponse::into_response)?;
        Ok(Self { visit, fields, parts })
    }
}

impl Act {
    /// Only admins may do this.
    pub(crate) async fn admin(&self, app: &App) -> Answer<()> {
        auth::may(app, &self.parts, self.visit.who.clone(), Role::Admin).await.map(|_| ())
    }
}

/// Other sites may not send forms here. Browsers say where one comes from; older ones by the page's origin.
pub(super) fn is_from_here(parts: &Parts) -> Answer<()> {
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let is_ours = match (text("sec-fetch-site"), text("origin")) {
        (Some(from), _) => matches!(from, "same-origin" | "none"),
        (None, Some(origin)) => {
            let host = origin.split_once("://").map(|(_, host)| host);
            host.is_some() && (host == text("host") || host == text("x-forwarded-host"))
        }
        (None, None) => true, // no browser: it has no one's cookies but its own
    };
    let detail = "this form was sent from another site";
    if is_ours { Ok(()) } else { Err(Problem::new(StatusCode::FORBIDDEN, "wrong_form", detail)) }
}

pub(super) fn is_https(headers: &HeaderMap) -> bool {
    headers.get("x-forwarded-proto").is_some_and(|proto| proto.as_bytes().eq_ignore_ascii_case(b"https"))
}

pub(super) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut all = all.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    all.find(|(known, _)| *known == name).map(|(_, value)| value).filter(|value| !value.is_empty())
}

/// A path of ours, as a header can have it: nobody is sent anywhere else.
fn is_ours(path: &str) -> bool {
    let is_none = |c: char| c == '\\' || c.is_control();
    path.starts_with('/') && !path.starts_with("//") && !path.contains(is_none)
}

fn ours(path: &str) -> &str {
    if is_ours(path) { path } else { "/" }
}

/// As it may stand in a cookie.
fn plain(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || "-_. ,".contains(*c)).take(100).collect()
}

macro_rules! says {
    ($($name:ident = $word:ident,)*) => {
        /// What was just done: a word of its own for each, `{0}` in it is what it was done to.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Said { $($name,)* }

        impl Said {
            fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            fn read(cookie: &str, w: &Words) -> Option<String> {
                let (name, about) = cookie.split_once('~')?;
                let about = plain(about);
                match name {
                    $(stringify!($name) => Some(super::words::fill(w.$word, &[&about])),)*
                    _ => None,
                }
            }
        }
    };
}

says! {
    Retried = said_retried,
    Cancelled = said_cancelled,
    StopRequested = said_stop_requested,
    Failed = said_failed,
    PolicyEdited = said_policy_edited,
    Redriven = said_redriven,
    Twin = said_twin,
    Resolved = said_resolved,
    Discarded = said_discarded,
    Acknowledged = said_acknowledged,
    TakenOver = said_taken_over,
    MethodPaused = said_method_paused,
    MethodResumed = said_method_resumed,
    GateHeldOpen = said_gate_held_open,
    GateHeldClosed = said_gate_held_closed,
    GateReleased = said_gate_released,
    GateReset = said_gate_reset,
    SagaTold = said_saga_told,
    SagaRetried = said_saga_retried,
    SagaSkipped = said_saga_skipped,
    SagaResolved = said_saga_resolved,
    SagaInput = said_saga_input,
    SagaForward = said_saga_forward,
    SagaCancelled = said_saga_cancelled,
    SagaKilled = said_saga_killed,
    RowSuccessful = said_row_successful,
    SettingSet = said_setting_set,
    SettingUnset = said_setting_unset,
    SettingWaits = said_setting_waits,
    ChannelTested = said_channel_tested,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_to_another_site() {
        for path in
            ["//evil.example", "/\\evil.example", "https://evil.example", "", "evil", "/a\nb", "/\u{1}", "/\u{7f}"]
        {
            assert_eq!(ours(path), "/", "{path:?}");
        }
        assert_eq!(ours("/tasks?a=1"), "/tasks?a=1");
    }

    #[test]
    fn forms_of_other_sites_are_refused() {
        let from = |headers: &[(&str, &str)]| {
            let mut request = axum::http::Request::post("/x");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            is_from_here(&request.body(()).unwrap().into_parts().0).is_ok()
        };
        assert!(from(&[("sec-fetch-site", "same-origin"), ("origin", "https://proxy.example")]));
        assert!(!from(&[("sec-fetch-site", "cross-site")]) && !from(&[("sec-fetch-site", "same-site")]));
        assert!(from(&[("origin", "http://a:1"), ("host", "a:1")]) && from(&[("host", "a:1")]));
        assert!(!from(&[("origin", "http://b"), ("host", "a:1")]) && !from(&[("origin", "null"), ("host", "a")]));
    }

    #[test]
    fn a_cookie_says_one_of_our_sentences_only() {
        let w = Lang::En.words();
        assert!(Said::read("Redriven~<script>7", w).unwrap().contains("script7"));
        assert_eq!(Said::read("Other~7", w), None);
    }
}
