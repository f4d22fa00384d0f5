//! What becomes of an answer that names another address: a pure decision.
//!
//! 307 and 308 repeat the request there. 303 says that the request was taken and its result is there: it is fetched. 301 and
//! 302 repeat a GET or HEAD; of other methods HTTP lets a client make a GET, and most do, but then a page that says "please
//! log in" would count as a delivery. It is not followed, and its task is rejected with the reason. Neither is a redirect
//! from https to http: what was asked to go encrypted would not.

use reqwest::{Method, StatusCode, Url};

/// What to do after an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It is the answer.
    Answer,
    /// It is the answer, though it names another address that is not called, and why.
    NotFollowed(String),
    /// Go there.
    To {
        /// Where.
        url: Url,
        /// With which method.
        method: Method,
        /// Whether the body goes along.
        with_body: bool,
    },
}

/// What to do after an answer with this status and `location` to a request of this method to this address.
pub(super) fn next(method: &Method, from: &Url, status: StatusCode, location: Option<&str>) -> Next {
    if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Next::Answer;
    }
    let safe = matches!(*method, Method::GET | Method::HEAD);
    if matches!(status.as_u16(), 301 | 302) && !safe {
        return Next::NotFollowed(format!("a {method} would be made a GET, and its body lost"));
    }
    let url = match resolved(from, location) {
        Ok(url) => url,
        Err(why) => return Next::NotFollowed(why),
    };
    match status.as_u16() {
        303 if *method != Method::HEAD => Next::To { url, method: Method::GET, with_body: false },
        _ => Next::To { url, method: method.clone(), with_body: true },
    }
}

fn resolved(from: &Url, location: Option<&str>) -> Result<Url, String> {
    let location = location.ok_or("it does not say where to")?;
    let mut url = from.join(location).map_err(|e| format!("it does not say where to: {e}"))?;
    if !matches!(url.scheme(), "https" | "http") || !url.has_host() {
        return Err("it leads to what is not HTTP".into());
    }
    if from.scheme() == "https" && url.scheme() == "http" {
        return Err("it leads from https to http".into());
    }
    // A login in it would be sent as a header; both can be set, as the URL has a host.
    _ = url.set_username("");
    _ = url.set_password(None);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(method: &str, status: u16, location: &str) -> Next {
        let from = Url::parse("https://h/a/b").unwrap();
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        next(&method, &from, StatusCode::from_u16(status).unwrap(), Some(location).filter(|l| !l.is_empty()))
    }

    #[test]
    fn methods_and_bodies_follow_the_rules_of_http() {
        for (method, status, expected) in [
            ("GET", 301, Some(("GET", true))),
            ("HEAD", 302, Some(("HEAD", true))),
            ("POST", 301, None),
            ("PUT", 302, None),
            ("POST", 303, Some(("GET", false))),
            ("DELETE", 303, Some(("GET", false))),
            ("HEAD", 303, Some(("HEAD", true))),
            ("POST", 307, Some(("POST", true))),
            ("PATCH", 308, Some(("PATCH", true))),
        ] {
            match (after(method, status, "/c"), expected) {
                (Next::To { url, method: with, with_body }, Some((expected, body))) => {
                    assert_eq!(
                        (url.as_str(), with.as_str(), with_body),
                        ("https://h/c", expected, body),
                        "{method} {status}"
                    );
                }
                (Next::NotFollowed(_), None) => {}
                (other, _) => panic!("{method} {status}: {other:?}"),
            }
        }
        for status in [200, 204, 300, 304, 305, 404, 503] {
            assert_eq!(after("GET", status, "/c"), Next::Answer, "{status}");
        }
    }

    #[test]
    fn where_it_leads() {
        let to = |location: &str| match after("GET", 307, location) {
            Next::To { url, .. } => url.to_string(),
            other => format!("{other:?}"),
        };
        assert_eq!(to("c?d"), "https://h/a/c?d");
        assert_eq!(to("//other/x"), "https://other/x");
        assert_eq!(to("https://me:pw@other/"), "https://other/");
        for nowhere in ["", "http://h/", "ftp://h/", "javascript:alert(1)", "https://"] {
            assert!(to(nowhere).starts_with("NotFollowed"), "{nowhere}: {}", to(nowhere));
        }
    }
}
