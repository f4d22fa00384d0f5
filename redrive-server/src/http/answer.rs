//! What came back: status, headers and body, bounded, for the success condition, the archive and the error message.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use redrive::Timestamp;
use reqwest::StatusCode;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its headers, with names in lower case; without cookies, and not more than 8 KiB of them.
    pub headers: BTreeMap<String, String>,
    /// Its body, if it is text: the first 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The same in base64, if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// Whether there was more of the body.
    #[serde(default)]
    pub truncated: bool,
    /// How long it asks to be left alone.
    #[serde(skip)]
    pub retry_after: Option<Duration>,
    /// What else is to be said of it.
    #[serde(skip)]
    pub(crate) note: Option<String>,
    /// Whether the request was taken (303), and this is the answer to a look at what came of it.
    #[serde(skip)]
    pub(crate) taken: bool,
}

/// The most of a body that is read and kept.
const LONGEST_BODY: usize = 64 * 1024;
const LONGEST_HEADERS: usize = 8 * 1024;
/// The most of a body in an error message.
const LONGEST_SAID: usize = 1000;
/// Whoever asks for more is mistaken, or wants to get rid of us.
const LONGEST_WAIT: Duration = Duration::from_secs(7 * 24 * 3600);

impl Answer {
    /// Reads an answer; no more of it than is kept.
    pub(super) async fn read(mut response: reqwest::Response, now: Timestamp) -> reqwest::Result<Self> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            body.extend_from_slice(&chunk);
            if body.len() > LONGEST_BODY {
                break;
            }
        }
        Ok(Self::new(response.status(), response.headers(), body, now))
    }

    fn new(status: StatusCode, headers: &HeaderMap, mut body: Vec<u8>, now: Timestamp) -> Self {
        let truncated = body.len() > LONGEST_BODY;
        body.truncate(LONGEST_BODY);
        let (body, body_base64) = text_or_base64(body, truncated);
        let retry_after = retry_after(headers, now);
        Self {
            status: status.as_u16(),
            headers: kept(headers),
            body,
            body_base64,
            truncated,
            retry_after,
            note: None,
            taken: false,
        }
    }

    /// Whether its status is one of success.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether it says nothing of the call but that the service could not look at it now.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self.status, 408 | 425 | 429 | 500..)
    }

    /// Its body as a condition sees it: JSON if it is, else text.
    pub fn body_value(&self) -> Value {
        let text = self.body.as_deref().or(self.body_base64.as_deref()).unwrap_or_default();
        serde_json::from_str(text).unwrap_or_else(|_| text.into())
    }

    /// It in a line, for people: `503 Service Unavailable: we are closed`.
    pub fn said(&self) -> String {
        let status = StatusCode::from_u16(self.status).map_or_else(|_| self.status.to_string(), |s| s.to_string());
        let status = status.trim_end_matches(" <unknown status code>");
        let note = self.note.as_ref().map_or_else(String::new, |note| format!(" ({note})"));
        match self.body.as_deref().map(str::trim).filter(|body| !body.is_empty()) {
            None => format!("{status}{note}"),
            Some(body) => format!("{status}{note}: {}", &body[..body.floor_char_boundary(LONGEST_SAID)]),
        }
    }

    /// Why it is not what was wanted, for people: its status; or, if that says yes, that the success condition does not.
    pub(crate) fn unmet(&self) -> String {
        match self.is_success() {
            true => format!("the answer does not satisfy the success condition: {}", self.said()),
            false => self.said(),
        }
    }

    /// It without what must not be kept. A body that is not text is looked at as the bytes that came.
    pub(super) fn hiding(mut self, hide: impl Fn(&[u8]) -> Vec<u8>) -> Self {
        let in_text = |text: String| String::from_utf8_lossy(&hide(text.as_bytes())).into_owned();
        self.body = self.body.map(in_text);
        self.headers.values_mut().for_each(|value| *value = in_text(std::mem::take(value)));
        let bytes = self.body_base64.and_then(|body| BASE64_STANDARD.decode(body).ok());
        self.body_base64 = bytes.map(|bytes| BASE64_STANDARD.encode(hide(&bytes)));
        self
    }
}

/// A body that was cut may end within a character.
fn text_or_base64(body: Vec<u8>, truncated: bool) -> (Option<String>, Option<String>) {
    match String::from_utf8(body) {
        Ok(text) => ((!text.is_empty()).then_some(text), None),
        Err(e) if truncated && e.utf8_error().error_len().is_none() => {
            let valid = e.utf8_error().valid_up_to();
            let mut body = e.into_bytes();
            body.truncate(valid);
            (String::from_utf8(body).ok(), None)
        }
        Err(e) => (None, Some(BASE64_STANDARD.encode(e.as_bytes()))),
    }
}

fn kept(headers: &HeaderMap) -> BTreeMap<String, String> {
    let (mut kept, mut size) = (BTreeMap::<String, String>::new(), 0);
    for (name, value) in headers.iter().filter(|(name, _)| *name != "set-cookie") {
        let value = String::from_utf8_lossy(value.as_bytes());
        size += name.as_str().len() + value.len();
        if size > LONGEST_HEADERS {
            break;
        }
        kept.entry(name.to_string())
            .and_modify(|before| *before = format!("{before}, {value}"))
            .or_insert(value.into());
    }
    kept
}

/// `Retry-After`, in seconds or as a date. A date is counted from the server's own, so that clocks need not agree.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        let seconds = text.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(LONGEST_WAIT));
    }
    let date = |text: &str| httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok();
    let theirs = headers.get(DATE).and_then(|value| date(value.to_str().ok()?));
    let now = theirs.unwrap_or_else(|| now.since(Timestamp::EPOCH));
    Some(date(text)?.saturating_sub(now).min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        all.iter().for_each(|(name, value)| _ = headers.append(*name, value.parse().unwrap()));
        headers
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now: Timestamp = "2026-11-16T08:00:00Z".parse().unwrap();
        let after = |all: &[(&'static str, &str)]| retry_after(&headers(all), now).map(|time| time.as_secs());
        assert_eq!(after(&[]), None);
        assert_eq!(after(&[("retry-after", "120")]), Some(120));
        assert_eq!(after(&[("retry-after", " 0 ")]), Some(0));
        assert_eq!(after(&[("retry-after", "Mon, 16 Nov 2026 08:01:30 GMT")]), Some(90));
        assert_eq!(after(&[("retry-after", "Monday, 16-Nov-26 08:01:30 GMT")]), Some(90), "an old form");
        assert_eq!(after(&[("retry-after", "Mon, 16 Nov 2026 07:00:00 GMT")]), Some(0), "has passed");
        let theirs = ("date", "Mon, 16 Nov 2026 08:01:00 GMT");
        assert_eq!(
            after(&[("retry-after", "Mon, 16 Nov 2026 08:01:30 GMT"), theirs]),
            Some(30),
            "their clock is ahead"
        );
        for endless in ["99999999999999999999999", "Mon, 16 Nov 2099 08:00:00 GMT"] {
            assert_eq!(after(&[("retry-after", endless)]), Some(LONGEST_WAIT.as_secs()), "{endless}");
        }
        for nonsense in ["", "soon", "-5", "1.5", "1e3"] {
            assert_eq!(after(&[("retry-after", nonsense)]), None, "{nonsense}");
        }
    }

    #[test]
    fn bodies_are_text_or_base64_and_bounded() {
        let answer = |body: &[u8]| Answer::new(StatusCode::OK, &HeaderMap::new(), body.to_vec(), Timestamp::EPOCH);
        assert_eq!(answer(b"{\"ok\": true}").body_value()["ok"], true);
        assert_eq!(answer(b"fine").body_value(), "fine");
        assert_eq!(answer(b"").body_value(), "");
        let binary = answer(b"\xff\xfe");
        assert_eq!((binary.body, binary.body_base64.as_deref()), (None, Some("//4=")));
        let long = answer("漢".repeat(LONGEST_BODY).as_bytes());
        assert!(long.truncated && long.body.unwrap().len() > LONGEST_BODY - 3);
    }

    #[test]
    fn headers_are_kept_but_for_cookies_and_floods() {
        let flood = "x".repeat(LONGEST_HEADERS);
        let kept = kept(&headers(&[("Vary", "a"), ("vary", "b"), ("set-cookie", "session=1"), ("x-flood", &flood)]));
        assert_eq!(kept.into_iter().collect::<Vec<_>>(), [("vary".to_owned(), "a, b".to_owned())]);
    }

    #[test]
    fn an_answer_in_a_line() {
        let mut answer = Answer { status: 503, body: Some("  we are closed\n".into()), ..Answer::default() };
        assert_eq!(answer.said(), "503 Service Unavailable: we are closed");
        answer = Answer { status: 799, body: Some("é".repeat(2000)), note: Some("odd".into()), ..answer };
        assert!(answer.said().starts_with("799 (odd): é") && answer.said().len() < 1100, "{}", answer.said());
        assert_eq!(Answer { status: 204, ..Answer::default() }.said(), "204 No Content");
    }
}
