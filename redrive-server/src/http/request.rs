//! What is asked for and stored as a task's params: a request to an address, or to a path at a named target.
//!
//! Whether it can be sent is looked at before it is written down, and all that is wrong is said at once. What it names beside
//! itself, the target, and where its host is, can change until it is sent: that is looked at then.

use std::collections::{BTreeMap, HashSet};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use redrive::{Problems, Result};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde::{Deserialize, Serialize};

use super::headers::is_reserved;

/// A request to be delivered.
///
/// ```
/// use redrive_server::http::HttpRequest;
///
/// let request: HttpRequest = serde_json::from_str(r#"{"url": "https://example.org/orders", "body": "{\"order\": 7}"}"#)?;
/// assert_eq!(request.method, "POST");
/// request.validate().unwrap();
///
/// let wrong: HttpRequest = serde_json::from_str(r#"{"method": "G ET", "url": "ftp://me:pw@example.org"}"#)?;
/// let said = wrong.validate().unwrap_err().to_string();
/// assert!(said.contains("method") && said.contains("url"), "{said}");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpRequest {
    /// In capitals, or it is made so. Default: `POST`.
    #[serde(default = "post")]
    pub method: String,
    /// An address that begins with `https://` or `http://`; with a target a path, with a query if need be.
    #[serde(default)]
    pub url: String,
    /// Default: none but those that are always sent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body, if it is text. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The body in base64, if it is not text. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// The target to which `url` is a path. Default: none, `url` is a whole address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

fn post() -> String {
    "POST".into()
}

/// The most bytes of an address or a path.
const LONGEST_URL: usize = 8 * 1024;
/// The most bytes of a body.
const LONGEST_BODY: usize = 1024 * 1024;
/// The most bytes of headers, and how many there may be.
const LONGEST_HEADERS: usize = 32 * 1024;
const MOST_HEADERS: usize = 100;

impl Default for HttpRequest {
    fn default() -> Self {
        Self {
            method: post(),
            url: String::new(),
            headers: BTreeMap::new(),
            body: None,
            body_base64: None,
            target: None,
        }
    }
}

impl HttpRequest {
    /// A POST to an address.
    pub fn post(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }

    /// A POST to a path at a target.
    pub fn to_target(target: impl Into<String>, path: impl Into<String>) -> Self {
        Self { target: Some(target.into()), ..Self::post(path) }
    }

    /// With these bytes as its body.
    pub fn with_body(mut self, body: impl Into<Vec<u8>>) -> Self {
        match String::from_utf8(body.into()) {
            Ok(text) => (self.body, self.body_base64) = (Some(text), None),
            Err(e) => (self.body, self.body_base64) = (None, Some(BASE64_STANDARD.encode(e.as_bytes()))),
        }
        self
    }

    /// Whether it can be sent; if not, all that is wrong with it.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Problems::default();
        let p = &mut problems;
        if let Err(why) = self.parsed_method() {
            p.add("method", why);
        }
        let url = if self.target.is_some() { check_path(&self.url) } else { self.address().map(|_| ()) };
        if let Err(why) = url {
            p.add("url", why);
        }
        if let Some(target) = &self.target {
            p.require(!target.is_empty(), "target", || "is empty; leave it out if the address is whole".into());
        }
        check_headers(&self.headers, p);
        match self.bytes() {
            Err(why) => p.add("body_base64", why),
            Ok(body) => p.require(body.len() <= LONGEST_BODY, "body", || {
                format!(
                    "is {} bytes, the limit is {LONGEST_BODY}; keep large data elsewhere and send its address",
                    body.len()
                )
            }),
        }
        p.require(self.body.is_none() || self.body_base64.is_none(), "body_base64", || {
            "cannot be given beside a body".into()
        });
        problems.into_result()
    }

    pub(super) fn parsed_method(&self) -> Result<Method, String> {
        match Method::from_bytes(self.method.to_ascii_uppercase().as_bytes()) {
            Ok(Method::CONNECT | Method::TRACE) => Err(format!("{} cannot be delivered", self.method)),
            Ok(method) if self.method.len() <= 32 => Ok(method),
            _ => Err("must be a word such as GET or POST".into()),
        }
    }

    /// Its address, if it has no target.
    pub(super) fn address(&self) -> Result<Url, String> {
        check_text(&self.url)?;
        let url = Url::parse(&self.url).map_err(|e| format!("is not an address: {e}"))?;
        match () {
            () if !matches!(url.scheme(), "https" | "http") => Err("must begin with https:// or http://".into()),
            () if !url.has_host() => Err("has no host".into()),
            () if !url.username().is_empty() || url.password().is_some() => {
                Err("must have no user and password, which would be stored; give them as a secret header of a target"
                    .into())
            }
            () => Ok(url),
        }
    }

    pub(super) fn bytes(&self) -> Result<Vec<u8>, String> {
        match (&self.body, &self.body_base64) {
            (Some(text), _) => Ok(text.clone().into_bytes()),
            (None, Some(base64)) => BASE64_STANDARD.decode(base64).map_err(|e| format!("is not base64: {e}")),
            (None, None) => Ok(Vec::new()),
        }
    }

    /// Its own headers; those that are none are left out.
    pub(crate) fn header_map(&self) -> HeaderMap {
        let header = |(name, value): (&String, &String)| {
            Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?))
        };
        self.headers.iter().filter_map(header).collect()
    }
}

/// What the parser would drop silently, or take for something else, is refused.
fn check_text(url: &str) -> Result<(), String> {
    match () {
        () if url.len() > LONGEST_URL => Err(format!("is {} bytes, the limit is {LONGEST_URL}", url.len())),
        () if url.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\') => {
            Err("must have no spaces, line breaks or backslashes".into())
        }
        () => Ok(()),
    }
}

/// A path at a target. That it stays below the target's base is looked at when it is joined with it.
pub(super) fn check_path(path: &str) -> Result<(), String> {
    check_text(path)?;
    let before_query = path.split(['?', '#']).next().unwrap_or_default();
    match () {
        () if before_query.contains("://") || path.starts_with("//") => {
            Err("must be a path, since a target is given: /orders/7".into())
        }
        () if path.contains('#') => Err("must have no #".into()),
        () => Ok(()),
    }
}

fn check_headers(headers: &BTreeMap<String, String>, problems: &mut Problems) {
    let size: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    problems.require(headers.len() <= MOST_HEADERS && size <= LONGEST_HEADERS, "headers", || {
        format!("are {} with {size} bytes, the limits are {MOST_HEADERS} and {LONGEST_HEADERS}", headers.len())
    });
    let mut seen = HashSet::new();
    for (name, value) in headers {
        let at = format!("headers.{name}");
        match HeaderName::from_bytes(name.as_bytes()) {
            Err(_) => problems.add("headers", format!("{name:?} is not a header's name")),
            Ok(known) if is_reserved(known.as_str()) => problems.add(at, "is ours to set"),
            Ok(known) if !seen.insert(known.clone()) => problems.add(at, "is given twice"),
            Ok(_) => problems.require(HeaderValue::from_str(value).is_ok(), &at, || {
                "must be visible ASCII without line breaks".into()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said(request: &HttpRequest) -> String {
        request.validate().map_or_else(|e| e.to_string(), |()| String::new())
    }

    #[test]
    fn addresses() {
        for good in
            ["https://example.org", "http://example.org:8080/a?b=c", "https://[2001:db8::1]/", "http://3232235777/x"]
        {
            assert_eq!(said(&HttpRequest::post(good)), "", "{good}");
        }
        for bad in [
            "",
            "example.org",
            "ftp://example.org",
            "https://",
            "https://u@h/",
            "https://u:p@h/",
            "https://:p@h/",
            "https://h/\na",
            " https://h/",
            "https:\\\\h\\",
            "file:///etc/passwd",
            "https://h/a b",
        ] {
            assert!(said(&HttpRequest::post(bad)).starts_with("url: "), "{bad:?}");
        }
        assert!(said(&HttpRequest::post("https://u:p@h/")).contains("target"));
    }

    #[test]
    fn paths_at_a_target() {
        for good in ["", "/", "/orders/7?a=b", "orders", "/redirect?to=https://example.org"] {
            assert_eq!(said(&HttpRequest::to_target("billing", good)), "", "{good}");
        }
        for bad in ["https://example.org/x", "//example.org/x", "/a#b", "/a b", "\\\\evil"] {
            assert!(said(&HttpRequest::to_target("billing", bad)).starts_with("url: "), "{bad}");
        }
        assert!(said(&HttpRequest::to_target("", "/")).contains("target"));
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        let headers = [
            ("Host", "x"),
            ("Content-Length", "1"),
            ("Redrive-Fence", "x"),
            ("webhook-id", "x"),
            ("a b", "x"),
            ("X-A", "1"),
            ("x-a", "2"),
            ("X-B", "a\r\nb"),
            ("Connection", "close"),
        ];
        let request = HttpRequest {
            method: "connect".into(),
            headers: headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            body: Some("x".into()),
            body_base64: Some("not base64!".into()),
            ..HttpRequest::post("nowhere")
        };
        let said = said(&request);
        for field in [
            "method",
            "url",
            "headers.Host",
            "headers.Content-Length",
            "headers.Redrive-Fence",
            "headers.webhook-id",
            "\"a b\"",
            "headers.x-a",
            "headers.X-B",
            "headers.Connection",
            "body_base64",
        ] {
            assert!(said.contains(field), "{field} in {said}");
        }
    }

    #[test]
    fn bodies_are_text_or_base64_and_come_back_as_they_were() {
        for body in [&b"{\"a\": 1}"[..], b"\xff\x00\xfe", b"", "\u{0}é漢".as_bytes()] {
            let request = HttpRequest::post("https://h").with_body(body);
            let read: HttpRequest = serde_json::from_str(&serde_json::to_string(&request).unwrap()).unwrap();
            assert_eq!(read.bytes().unwrap(), body);
        }
        assert!(
            said(&HttpRequest::post("https://h").with_body(vec![b'a'; LONGEST_BODY + 1])).contains("body: is 1048577")
        );
        assert!(serde_json::from_str::<HttpRequest>(r#"{"url": "https://h", "bdy": "x"}"#).is_err());
    }

    proptest! {
        /// Whatever it is: no panic, and what is said to be good has all that a delivery needs.
        #[test]
        fn validation_never_panics(
            method in "\\PC{0,8}", url in "(https?://)?\\PC{0,40}", name in "\\PC{0,12}", value in any::<String>(),
            body in proptest::option::of(any::<String>()), base64 in proptest::option::of("\\PC{0,9}"),
            target in proptest::option::of("\\PC{0,5}"),
        ) {
            let headers = [(name, value)].into();
            let request = HttpRequest { method, url, headers, body, body_base64: base64, target };
            if request.validate().is_ok() {
                prop_assert!(request.parsed_method().is_ok() && request.bytes().is_ok());
                prop_assert!(request.target.is_some() || request.address().is_ok());
                prop_assert_eq!(request.header_map().len(), 1);
            }
        }

        #[test]
        fn any_json_is_read_or_refused(json in "\\PC{0,60}") {
            if let Ok(request) = serde_json::from_str::<HttpRequest>(&json) {
                _ = request.validate();
            }
        }
    }
}
