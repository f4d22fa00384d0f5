//! Notices by webhook: a POST to any address, or to the bots of Slack, DingTalk, Feishu and WeCom.
//!
//! The bots' addresses have tokens in them, so an address is a [`Secret`] and only its host is ever shown. Redirects are not
//! followed: the token would go along. DingTalk, Feishu and WeCom answer a refused message with HTTP 200 and a code in the
//! body; only the code 0 is a success.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::percent_decode_str;
use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use rustls_platform_verifier::BuilderVerifierExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::clock::Timestamp;
use crate::duration;
use crate::error::{Problems, chain};
use crate::task::storable;

use super::{Message, NotifyError, Secret, check_timeout};

/// A POST to an address.
///
/// ```
/// use redrive::notify::{Format, Webhook};
///
/// let chat: Webhook = serde_json::from_str(
///     r#"{"url": "https://oapi.dingtalk.com/robot/send?access_token=t", "format": "dingtalk", "secret": "SEC0"}"#,
/// )?;
/// assert_eq!(chat.format, Format::Dingtalk);
/// assert!(!format!("{chat:?}").contains("SEC0"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Webhook {
    /// The address, `https://…`; never shown, for it often has a token in it. Default: none, it must be given.
    pub url: Secret,
    /// What is sent. Default: `generic`.
    pub format: Format,
    /// What messages are signed with: of `dingtalk` and `feishu` the bot's secret, of `generic` one of Standard Webhooks
    /// (`whsec_` and base64). Default: none, they are not signed.
    pub secret: Option<Secret>,
    /// How long the server may take for its answer. Default: 30 s.
    #[serde(with = "duration")]
    pub timeout: Duration,
}

/// What a webhook is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// JSON for programs: `subject`, `text` and `details`; signed after Standard Webhooks if there is a secret.
    #[default]
    Generic,
    /// An incoming webhook of Slack, or of what understands the same (Mattermost, Discord's `/slack`).
    Slack,
    /// A bot of DingTalk.
    Dingtalk,
    /// A bot of Feishu (Lark).
    Feishu,
    /// A bot of WeCom.
    Wecom,
}

impl Default for Webhook {
    fn default() -> Self {
        Self { url: Secret::default(), format: Format::default(), secret: None, timeout: Duration::from_secs(30) }
    }
}

/// Shorter parts of an address are not looked for in what is kept: they would be found everywhere.
const SHORTEST_HIDDEN: usize = 6;

/// The most of a server's answer that is looked at.
const LONGEST_ANSWER: usize = 64 * 1024;

impl Format {
    /// How many bytes of text a message may have. WeCom refuses more than 2,048, DingTalk and Feishu about 20,000, Slack
    /// 40,000 characters.
    const fn longest_text(self) -> usize {
        match self {
            Self::Generic => usize::MAX,
            Self::Wecom => 2_048,
            Self::Slack | Self::Dingtalk | Self::Feishu => 15_000,
        }
    }
}

impl Webhook {
    /// Where it goes, for logs: the host alone.
    pub(super) fn target(&self) -> String {
        self.parsed().ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_else(|| "?".into())
    }

    pub(super) fn check(&self, problems: &mut Problems) {
        if let Err(why) = self.parsed() {
            problems.add("url", why);
        }
        match (self.format, &self.secret) {
            (Format::Slack | Format::Wecom, Some(_)) => {
                problems.add("secret", "this format has no signatures; leave it out");
            }
            (Format::Generic, Some(secret)) if standard_key(secret).is_none() => {
                problems.add("secret", "must be a secret of Standard Webhooks: whsec_ and base64");
            }
            (_, Some(secret)) => problems.require(!secret.reveal().is_empty(), "secret", || "is empty".into()),
            (_, None) => {}
        }
        check_timeout(self.timeout, problems);
    }

    fn parsed(&self) -> Result<Url, String> {
        match Url::parse(self.url.reveal()) {
            Ok(url) if matches!(url.scheme(), "https" | "http") && url.has_host() => Ok(url),
            _ => Err("must be an address that begins with https:// or http:// (it is not shown here)".into()),
        }
    }

    /// Sends a message; when this returns, the server has said that it took it.
    pub(super) async fn send(&self, message: &Message, now: Timestamp) -> Result<(), NotifyError> {
        let Request { url, headers, body } = self.request(message, now)?;
        let sent = self.client()?.post(url).headers(headers).body(body).send().await;
        let answer = sent.map_err(|e| self.error(&e.without_url()))?;
        let status = answer.status();
        let body = read_bounded(answer).await.map_err(|e| self.error(&e.without_url()))?;
        // Hidden before it is cut: half a token is too much of it.
        let said = |why: &str| NotifyError::new(format!("{why}: {}", storable(&self.hidden(body.trim()), 200)));
        if !status.is_success() {
            return Err(said(&format!("the server answered {status}")));
        }
        accepted(self.format, &body).map_err(|why| said(&why))
    }

    /// The request for a message: address and headers signed if there is a secret.
    fn request(&self, message: &Message, now: Timestamp) -> Result<Request, NotifyError> {
        let mut url = self.parsed().map_err(NotifyError::new)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut body = body(self.format, message);
        match (self.format, &self.secret) {
            (Format::Dingtalk, Some(secret)) => {
                let ms = now.as_millis();
                let sign = dingtalk_signature(secret, ms);
                url.query_pairs_mut().append_pair("timestamp", &ms.to_string()).append_pair("sign", &sign);
            }
            (Format::Feishu, Some(secret)) => {
                let seconds = now.as_millis() / 1000;
                let sign = feishu_signature(secret, seconds);
                let signed = [("timestamp".to_owned(), seconds.to_string().into()), ("sign".to_owned(), sign.into())];
                body.as_object_mut().into_iter().for_each(|body| body.extend(signed.clone()));
            }
            _ => {}
        }
        let body = body.to_string();
        if let (Format::Generic, Some(key)) = (self.format, self.secret.as_ref().and_then(standard_key)) {
            headers.extend(standard_headers(&key, &message.id(), now.as_millis() / 1000, &body));
        }
        Ok(Request { url, headers, body })
    }

    /// With TLS by rustls and ring and the system's certificates, like everything here; reqwest's own choice would be
    /// another library, or one for the whole process.
    fn client(&self) -> Result<reqwest::Client, NotifyError> {
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(BuilderVerifierExt::with_platform_verifier)
            .map_err(|e| NotifyError::new(format!("setting up TLS: {e}")))?
            .with_no_client_auth();
        reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .timeout(self.timeout)
            .user_agent(concat!("redrive/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|e| self.error(&e))
    }

    fn error(&self, e: &dyn std::error::Error) -> NotifyError {
        NotifyError::new(self.hidden(&chain(e)))
    }

    /// A text without our secrets, whoever put them into it: a server may well say back the path that it was asked for.
    fn hidden(&self, text: &str) -> String {
        let parts = self.parsed().map(|url| parts(&url)).unwrap_or_default();
        let mut all: Vec<Secret> =
            parts.into_iter().filter(|part| part.len() >= SHORTEST_HIDDEN).map(Secret::from).collect();
        all.extend([Some(&self.url), self.secret.as_ref()].into_iter().flatten().cloned());
        all.sort_by_key(|secret| std::cmp::Reverse(secret.reveal().len())); // no part before what it is a part of
        all.iter().fold(text.to_owned(), |text, secret| secret.hide_in(&text))
    }
}

/// What of an address may be a token, as it is written and as it is meant.
fn parts(url: &Url) -> Vec<String> {
    let query = url.query().unwrap_or_default();
    let values = query.split('&').map(|pair| pair.split_once('=').map_or(pair, |(_, value)| value));
    let segments = url.path_segments().into_iter().flatten();
    let mut all = vec![url.path().to_owned(), format!("{}?{query}", url.path())];
    all.extend(segments.chain(values).chain(url.password()).map(str::to_owned));
    let meant = |part: &String| percent_decode_str(part).decode_utf8_lossy().into_owned();
    let in_a_form = |part: &String| meant(&part.replace('+', " "));
    let others: Vec<String> = all.iter().flat_map(|part| [meant(part), in_a_form(part)]).collect();
    [all, others].concat()
}

struct Request {
    url: Url,
    headers: HeaderMap,
    body: String,
}

/// The body for a message, not yet signed.
fn body(format: Format, message: &Message) -> Value {
    let text = || cut(&format!("{}\n\n{}", message.subject, message.text), format.longest_text());
    match format {
        Format::Generic => json!({
            "type": "redrive.notice", "subject": message.subject, "text": message.text, "details": message.details,
        }),
        // Without mark-up: neither `<!channel>` in an error nor its asterisks are to do anything.
        Format::Slack => json!({ "text": slack_escaped(&text()), "mrkdwn": false }),
        Format::Dingtalk | Format::Wecom => json!({ "msgtype": "text", "text": { "content": text() } }),
        // A post and not a text: in a text `<at …>` calls people.
        Format::Feishu => {
            let line = json!([[{ "tag": "text", "text": cut(&message.text, format.longest_text()) }]]);
            json!({
                "msg_type": "post",
                "content": { "post": { "en_us": { "title": message.subject, "content": line } } },
            })
        }
    }
}

fn slack_escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// At most `max` bytes, and it shows that it was cut.
fn cut(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    format!("{}…", storable(text, max.saturating_sub('…'.len_utf8())))
}

/// Whether the answer to an HTTP success is a success.
fn accepted(format: Format, answer: &str) -> Result<(), String> {
    let codes: &[&str] = match format {
        Format::Generic | Format::Slack => return Ok(()),
        Format::Dingtalk | Format::Wecom => &["errcode"],
        Format::Feishu => &["code", "StatusCode"],
    };
    let answer: Value = serde_json::from_str(answer).map_err(|_| "the answer is not a bot's".to_owned())?;
    match codes.iter().find_map(|code| answer.get(code)?.as_i64()) {
        Some(0) => Ok(()),
        Some(code) => Err(format!("refused with code {code}")),
        None => Err("the answer is not a bot's".into()),
    }
}

async fn read_bounded(mut answer: reqwest::Response) -> reqwest::Result<String> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        body.extend_from_slice(&chunk);
        if body.len() > LONGEST_ANSWER {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// DingTalk: the secret signs the time in milliseconds and itself.
fn dingtalk_signature(secret: &Secret, ms: i64) -> String {
    let secret = secret.reveal();
    signature(secret.as_bytes(), format!("{ms}\n{secret}").as_bytes())
}

/// Feishu: the time in seconds and the secret sign nothing.
fn feishu_signature(secret: &Secret, seconds: i64) -> String {
    signature(format!("{seconds}\n{}", secret.reveal()).as_bytes(), b"")
}

/// The key in a secret of Standard Webhooks.
fn standard_key(secret: &Secret) -> Option<Vec<u8>> {
    let key = BASE64_STANDARD.decode(secret.reveal().strip_prefix("whsec_")?).ok()?;
    (!key.is_empty()).then_some(key)
}

/// The headers of Standard Webhooks.
fn standard_headers(key: &[u8], id: &str, seconds: i64, body: &str) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let sign = format!("v1,{}", signature(key, format!("{id}.{seconds}.{body}").as_bytes()));
    let values =
        [("webhook-id", id.to_owned()), ("webhook-timestamp", seconds.to_string()), ("webhook-signature", sign)];
    values.into_iter().filter_map(|(name, value)| Some((HeaderName::from_static(name), value.parse().ok()?)))
}

/// HMAC-SHA256, as base64.
fn signature(key: &[u8], text: &[u8]) -> String {
    // HMAC takes keys of any length.
    let Ok(mut mac) = Hmac::<sha2::Sha256>::new_from_slice(key) else { return String::new() };
    mac.update(text);
    BASE64_STANDARD.encode(mac.finalize().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first is the example of Standard Webhooks; the others were computed with Python's hmac.
    #[test]
    fn signatures() {
        let key = standard_key(&"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()).unwrap();
        let headers: HeaderMap =
            standard_headers(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#).collect();
        assert_eq!(headers["webhook-signature"], "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let secret = Secret::from("SEC0123");
        assert_eq!(dingtalk_signature(&secret, 1_700_000_000_000), "2lI0CLA9w0NryWAswdWUgPoOvPXo1wScAKa+6Qn+lxQ=");
        assert_eq!(feishu_signature(&"demo".into(), 1_700_000_000), "8oT2n3SMKFfEnDoiwer8BUM/SjKLwe9SqoEIHlhDTKo=");
    }

    #[test]
    fn no_part_of_an_address_that_may_be_a_token_is_kept() {
        let url = "https://ada:passw0rd@host/hook/S3cret%2FT0ken/x?key=a%20b+c%3D%3D&n=1&b4retoken";
        let hook = Webhook { url: url.into(), secret: Some("SEC0".into()), ..Webhook::default() };
        for said in [
            url,
            "/hook/S3cret%2FT0ken/x?key=a%20b+c%3D%3D&n=1&b4retoken",
            "/hook/S3cret%2FT0ken/x",
            "/hook/S3cret/T0ken/x",
            "S3cret%2FT0ken",
            "S3cret/T0ken",
            "a%20b+c%3D%3D",
            "a b+c==",
            "a b c==",
            "b4retoken",
            "passw0rd",
            "SEC0",
        ] {
            assert_eq!(hook.hidden(&format!("cannot POST {said}, sorry")), "cannot POST ***, sorry", "{said}");
        }
        assert_eq!(hook.hidden("x is not 1 hook"), "x is not 1 hook", "short words are everywhere");
    }

    #[test]
    fn cut_texts_say_so() {
        assert_eq!((cut("abc", 3), cut("abcdef", 5), cut("漢字漢字", 9)), ("abc".into(), "ab…".into(), "漢字…".into()));
    }
}
