//! Errors as `application/problem+json` (RFC 9457): a code for programs, a sentence for people, and where it is wrong.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use redrive::Error;
use redrive::guard::Envelope;
use serde::Serialize;
use utoipa::ToSchema;

/// An answer that says what is wrong.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// For programs: it does not change.
    pub(crate) code: &'static str,
    pub(crate) status: u16,
    title: &'static str,
    /// What was being done, and to what.
    pub(crate) detail: String,
    /// Each field that is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<Wrong>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = WrongField)]
struct Wrong {
    field: String,
    problem: String,
}

pub(crate) type Answer<T> = Result<T, Problem>;

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        Self { code, status: status.as_u16(), title, detail: detail.into(), errors: Vec::new() }
    }

    /// The same in the form of the guards' own routes.
    pub(super) fn into_envelope(self) -> Envelope {
        Envelope::bad(StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), self.detail)
    }

    pub(crate) fn not_found(what: &str, id: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("there is no {what} {id}"))
    }
}

impl From<Error> for Problem {
    fn from(e: Error) -> Self {
        let said = e.to_string();
        match e {
            Error::Invalid(problems) => {
                let wrong = |(field, problem): (&str, &str)| Wrong { field: field.into(), problem: problem.into() };
                let errors = problems.iter().map(wrong).collect();
                Self { errors, ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", said) }
            }
            Error::NotFound { .. } => Self::new(StatusCode::NOT_FOUND, "not_found", said),
            Error::Conflict { .. } => Self::new(StatusCode::CONFLICT, "conflict", said),
            Error::Unavailable { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", said),
            ref e if e.is_transient() => Self::new(StatusCode::SERVICE_UNAVAILABLE, "database_unavailable", said),
            _ => {
                tracing::error!(error = said, "a request failed");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the server's log")
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_string(&self).unwrap_or_default(); // plain values cannot fail
        let mut response = (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response();
        let headers = response.headers_mut();
        match status {
            StatusCode::SERVICE_UNAVAILABLE => _ = headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1")),
            StatusCode::TOO_MANY_REQUESTS => _ = headers.insert(header::RETRY_AFTER, HeaderValue::from_static("60")),
            StatusCode::UNAUTHORIZED => {
                _ = headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response.extensions_mut().insert(self); // the console shows it as a page
        response
    }
}

pub(crate) async fn no_such_route(uri: axum::http::Uri) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no_such_route", format!("there is nothing at {}", uri.path()))
}

pub(super) async fn no_such_method(method: axum::http::Method, uri: axum::http::Uri) -> Problem {
    let detail = format!("{} does not take {method}", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no_such_method", detail)
}

/// A body that could not be received, or not in time, or is too large.
pub(crate) fn unreadable(e: &axum::extract::rejection::BytesRejection) -> Problem {
    let mut causes = std::iter::successors(Some(e as &(dyn std::error::Error + 'static)), |e| e.source());
    if causes.any(<dyn std::error::Error>::is::<tower_http::timeout::TimeoutError>) {
        return Problem::new(StatusCode::REQUEST_TIMEOUT, "slow_body", "the body did not come in time");
    }
    Problem::new(e.status(), "unreadable_body", e.body_text())
}

/// What is said instead of an answer that takes too long. What was under way is not undone: it may have been done.
pub(super) fn too_slow() -> Problem {
    let detail = "it took too long; what you asked for may or may not have been done";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_slow", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_done_here_and_now_may_be_asked_again() {
        let why = "it has stopped; nothing was written".into();
        let problem = Problem::from(Error::Unavailable { doing: "enqueue on", id: "this engine".into(), why });
        assert_eq!((problem.status, problem.code), (503, "unavailable"));
        assert_eq!(problem.detail, "cannot enqueue on this engine: it has stopped; nothing was written");
        assert_eq!(problem.into_response().headers()[header::RETRY_AFTER], "1");
    }
}
