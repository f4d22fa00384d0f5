//! What is said when it did not work, and the exit code: by class, so that scripts need not read sentences.

use axum::http::StatusCode;
use redrive::Error;
use serde_json::Value;

use super::out::plain;

/// Why it did not work. The exit code of all else is [`Failure::FAILED`].
#[derive(Debug, thiserror::Error)]
#[error("{said}")]
pub(super) struct Failure {
    code: u8,
    said: String,
    is_of_one: bool,
}

impl Failure {
    pub(super) const FAILED: u8 = 1;
    pub(super) const INVALID: u8 = 2;
    pub(super) const NOT_FOUND: u8 = 3;
    pub(super) const NOT_ALLOWED: u8 = 4;
    pub(super) const UNREACHABLE: u8 = 5;
    /// As shells have it: 128, and the number of the signal.
    pub(super) const INTERRUPTED: u8 = 130;

    /// What is said may come from a service: no terminal obeys it.
    pub(super) fn new(code: u8, said: impl Into<String>) -> Self {
        let is_of_one = matches!(code, Self::INVALID | Self::NOT_FOUND);
        Self { code, said: plain(&said.into()), is_of_one }
    }

    pub(super) fn failed(said: impl Into<String>) -> Self {
        Self::new(Self::FAILED, said)
    }

    pub(super) fn invalid(said: impl Into<String>) -> Self {
        Self::new(Self::INVALID, said)
    }

    pub(super) fn not_found(said: impl Into<String>) -> Self {
        Self::new(Self::NOT_FOUND, said)
    }

    pub(super) fn code(&self) -> u8 {
        self.code
    }

    pub(super) fn is_not_found(&self) -> bool {
        self.code == Self::NOT_FOUND
    }

    /// Whether it is about what was asked for alone, and the next may go well. Where nothing can be reached, or is allowed, it cannot.
    pub(super) fn is_of_one(&self) -> bool {
        self.is_of_one
    }

    /// What the API answered instead of what was asked for. What is no problem is not from the API.
    pub(super) fn answered(status: StatusCode, body: &[u8]) -> Self {
        let problem: Value = serde_json::from_slice(body).unwrap_or_default();
        match problem.get("detail").and_then(Value::as_str) {
            Some(_) => Self::of(&problem),
            None => Self::of_another(status),
        }
    }

    /// What was answered by something else: what it has done, or has not, says nothing about what was asked for.
    pub(super) fn of_another(status: StatusCode) -> Self {
        let code = match code_of(status) {
            Self::NOT_FOUND => Self::UNREACHABLE,
            _ if status.is_success() => Self::UNREACHABLE,
            code => code,
        };
        Self::new(code, format!("{status} was answered, by something that is no redrive server"))
    }

    /// A problem of the API.
    pub(super) fn of(problem: &Value) -> Self {
        let status = problem.get("status").and_then(Value::as_u64).and_then(|status| u16::try_from(status).ok());
        let status = status.and_then(|status| StatusCode::from_u16(status).ok());
        let code = status.map_or(Self::FAILED, code_of);
        let mut said = detail(problem);
        if status == Some(StatusCode::UNAUTHORIZED) {
            said += "\n  here: set REDRIVE_TOKEN, or name a file that has it with --token-file";
        }
        let failure = Self::new(code, said);
        Self { is_of_one: failure.is_of_one || status == Some(StatusCode::CONFLICT), ..failure }
    }
}

/// The sentence; or, if several fields are wrong, each in a line of its own.
fn detail(problem: &Value) -> String {
    let text = |value: &Value, name| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let wrong = problem.get("errors").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if wrong.len() < 2 {
        return text(problem, "detail");
    }
    let line = |wrong: &Value| format!("\n  {}: {}", text(wrong, "field"), text(wrong, "problem"));
    format!("not valid:{}", wrong.iter().map(line).collect::<String>())
}

fn code_of(status: StatusCode) -> u8 {
    match status.as_u16() {
        400 | 413 | 422 => Failure::INVALID,
        404 => Failure::NOT_FOUND,
        401 | 403 | 429 => Failure::NOT_ALLOWED,
        502..=504 => Failure::UNREACHABLE,
        _ => Failure::FAILED,
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        let code = match &e {
            Error::Invalid(_) => Self::INVALID,
            Error::NotFound { .. } => Self::NOT_FOUND,
            e if e.is_transient() => Self::UNREACHABLE,
            _ => Self::FAILED,
        };
        Self::new(code, e.to_string())
    }
}

/// The exit code for an error. `None`: whoever read the output has read enough (`| head`), which is no error.
pub(crate) fn exit_code(e: &anyhow::Error) -> Option<u8> {
    let closed = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    if e.downcast_ref::<std::io::Error>().is_some_and(closed) {
        return None;
    }
    // Of commands that do not go through the API: `serve`, `migrate`.
    let is_invalid = matches!(e.downcast_ref::<Error>(), Some(Error::Invalid(_)));
    let other = if is_invalid { Failure::INVALID } else { Failure::FAILED };
    Some(e.downcast_ref::<Failure>().map_or(other, |failure| failure.code))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_class_of_answers_has_its_code() {
        let cases = [(400, 2), (422, 2), (404, 3), (401, 4), (403, 4), (429, 4), (503, 5), (409, 1), (500, 1)];
        for (status, code) in cases {
            let failure = Failure::of(&json!({ "status": status, "detail": "so it is" }));
            assert_eq!(failure.code, code, "{status}");
            assert_eq!(failure.is_of_one(), [400, 404, 409, 422].contains(&status), "{status}");
            assert!(failure.said.starts_with("so it is"));
        }
    }

    #[test]
    fn every_wrong_field_is_named() {
        let wrong = json!([{ "field": "a", "problem": "is too long" }, { "field": "b", "problem": "is missing" }]);
        let said = Failure::of(&json!({ "status": 422, "detail": "…", "errors": wrong })).said;
        assert_eq!(said, "not valid:\n  a: is too long\n  b: is missing");
    }

    #[test]
    fn no_terminal_obeys_what_a_service_said() {
        let failure = Failure::of(&json!({ "status": 502, "detail": "it said \u{1b}]0;pwned\u{7}\nand more" }));
        assert_eq!(failure.said, "it said \\u001b]0;pwned\\u0007\nand more");
    }

    #[test]
    fn what_is_not_from_the_api_is_not_taken_for_it() {
        for (status, code) in [(502, Failure::UNREACHABLE), (404, Failure::UNREACHABLE), (403, Failure::NOT_ALLOWED)] {
            let failure = Failure::answered(StatusCode::from_u16(status).unwrap(), b"<html>");
            assert!(failure.code == code && failure.said.contains("no redrive server"), "{status}");
        }
    }
}
