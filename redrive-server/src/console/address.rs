//! By which address the console was asked for: what examples name, so that they can be run as they stand.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, header};

use super::visit::is_https;

/// Scheme, host and port.
pub(super) struct Address(pub(super) String);

/// Where it is asked for unless somebody has said otherwise.
const USUAL: &str = "127.0.0.1:7070";

impl<S: Sync> FromRequestParts<S> for Address {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(of(&parts.headers, parts.uri.authority().map(Authority::as_str))))
    }
}

/// What stands before us says what the browser asked it for.
fn of(headers: &HeaderMap, authority: Option<&str>) -> String {
    let said = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let hosts = [said("x-forwarded-host"), said(header::HOST.as_str()), authority];
    let host = hosts.into_iter().flatten().find(|host| is_host(host)).unwrap_or(USUAL);
    format!("{}://{host}", if is_https(headers) { "https" } else { "http" })
}

/// Whoever asks can say anything: only what is a host and a port goes into a command that people copy.
fn is_host(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    text.len() <= 255 && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[') && text.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_name_the_address_that_was_asked_for_if_it_is_one() {
        let asked = |pairs: &[(&'static str, &'static str)]| {
            of(&pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect(), None)
        };
        assert_eq!(asked(&[("host", "jobs.example.org")]), "http://jobs.example.org");
        assert_eq!(asked(&[("host", "[::1]:9000")]), "http://[::1]:9000");
        let proxied =
            [("host", "10.0.0.7:7070"), ("x-forwarded-host", "jobs.example.org"), ("x-forwarded-proto", "https")];
        assert_eq!(asked(&proxied), "https://jobs.example.org");
        for wrong in ["a b", "x;rm", "$(id)", "'", "-x", ""] {
            assert_eq!(asked(&[("host", wrong)]), "http://127.0.0.1:7070", "{wrong}");
        }
    }
}
