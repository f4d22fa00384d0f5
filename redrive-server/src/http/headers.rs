//! What is sent beside what the caller says.
//!
//! | header | value |
//! | --- | --- |
//! | `webhook-id` | the task's id: the same in all attempts |
//! | `webhook-timestamp` | when this attempt was made, in seconds since 1970 |
//! | `webhook-signature` | of a target with signing secrets: one `v1,…` for each, after Standard Webhooks |
//! | `idempotency-key` | the task's key, or its id, within its business: [`idempotency_key`]; the caller's own wins |
//! | `redrive-attempt` | which attempt it is, from 1 |
//! | `redrive-fence` | the task's id and version: a receiver that has seen a greater one can refuse this |
//! | `traceparent` | the caller's, if it gave one |
//!
//! To another origin, by a redirect, goes only what is known to hold no credentials.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use redrive::{Business, Context, Timestamp};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

/// What a caller cannot set: it belongs to the connection, follows from the request, or is ours. So is all that begins
/// with `redrive-`.
const RESERVED: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    SIGNATURE,
    ID,
    TIMESTAMP,
];

const ID: &str = "webhook-id";
const TIMESTAMP: &str = "webhook-timestamp";
const SIGNATURE: &str = "webhook-signature";
const IDEMPOTENCY_KEY: &str = "idempotency-key";
const ATTEMPT: &str = "redrive-attempt";
const FENCE: &str = "redrive-fence";
const TRACEPARENT: &str = "traceparent";

/// What may go to another origin.
const HARMLESS: &[&str] = &[
    "accept",
    "accept-language",
    "content-encoding",
    "content-language",
    "content-type",
    "user-agent",
    ID,
    TIMESTAMP,
    IDEMPOTENCY_KEY,
    ATTEMPT,
    FENCE,
    TRACEPARENT,
];

/// Whether a header of this name, in lower case, is not to be set.
pub(super) fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || name.starts_with("redrive-")
}

/// What is known of the attempt that is sent. A request that belongs to no task has an id alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Sending {
    id: String,
    key: Option<String>,
    attempt: Option<u32>,
    fence: Option<String>,
    traceparent: Option<String>,
}

impl Sending {
    pub(super) fn new(cx: &Context<'_>, traceparent: Option<&str>) -> Self {
        let task = cx.task();
        // A redriven task is the same request again, to whoever has seen the first.
        let first = task.and_then(|task| task.origin_id).unwrap_or_else(|| cx.task_id()).to_string();
        Self {
            id: cx.task_id().to_string(),
            key: Some(idempotency_key(cx.business().as_deref(), cx.key().as_deref(), first)),
            attempt: Some(cx.attempt()),
            fence: Some(cx.fence()),
            traceparent: task.and_then(|task| task.traceparent.as_deref()).or(traceparent).map(str::to_owned),
        }
    }

    /// Of a request that belongs to no task.
    pub(super) fn alone(id: String) -> Self {
        Self { id, ..Self::default() }
    }

    /// Adds what is sent with every request.
    pub(super) fn add_to(&self, headers: &mut HeaderMap, keys: &[Vec<u8>], body: &[u8], now: Timestamp) {
        let seconds = (now.as_millis() / 1000).to_string();
        let signature = (!keys.is_empty()).then(|| signatures(keys, &self.id, &seconds, body));
        let mut put = |name: &'static str, value: &str| {
            HeaderValue::from_str(value).into_iter().for_each(|value| _ = headers.insert(name, value));
        };
        signature.iter().for_each(|signature| put(SIGNATURE, signature));
        put(ID, &self.id);
        put(TIMESTAMP, &seconds);
        self.attempt.iter().for_each(|attempt| put(ATTEMPT, &attempt.to_string()));
        self.fence.iter().for_each(|fence| put(FENCE, fence));
        let own = [(IDEMPOTENCY_KEY, self.key.as_ref()), (TRACEPARENT, self.traceparent.as_ref())];
        for (name, value) in own {
            if let Some(Ok(value)) = value.map(|value| HeaderValue::from_str(value)) {
                headers.entry(name).or_insert(value);
            }
        }
    }
}

/// A key is unique within its business only, and so is what is sent of it: `TYPE/ID/KEY`. Without a key it is the id of the
/// first task, which a redriven one may have for its key.
fn idempotency_key(business: Option<&Business>, key: Option<&str>, first: String) -> String {
    let part = |text: &str| visible(text).replace('/', "%2F");
    match business {
        Some(Business { kind, id }) => format!("{}/{}/{}", part(kind), part(id), visible(key.unwrap_or(&first))),
        None => key.filter(|key| HeaderValue::from_str(key).is_ok()).map_or(first, str::to_owned),
    }
}

/// A text as a header can have it: an id may be in any language. Different texts stay different.
pub(crate) fn visible(text: &str) -> String {
    let is_visible = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'%';
    text.bytes().fold(String::with_capacity(text.len()), |mut said, byte| {
        match is_visible(byte) {
            true => said.push(char::from(byte)),
            false => said += &format!("%{byte:02X}"),
        }
        said
    })
}

/// What of these headers may go to another origin.
pub(super) fn harmless(headers: &HeaderMap) -> HeaderMap {
    let kept = headers.iter().filter(|(name, _)| HARMLESS.contains(&name.as_str()));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Without those that are about a body.
pub(super) fn without_body(headers: &mut HeaderMap) {
    let about: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with("content-")).cloned().collect();
    about.iter().for_each(|name| _ = headers.remove(name));
    headers.remove(SIGNATURE);
}

/// The signatures of Standard Webhooks by each key, with spaces between them.
fn signatures(keys: &[Vec<u8>], id: &str, seconds: &str, body: &[u8]) -> String {
    let sign = |key: &Vec<u8>| {
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key).ok()?; // it takes keys of any length
        [id.as_bytes(), b".", seconds.as_bytes(), b".", body].iter().for_each(|part| mac.update(part));
        Some(format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes())))
    };
    keys.iter().filter_map(sign).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sending() -> Sending {
        let (id, key, fence) = ("7".into(), Some("order-7".into()), Some("7-3".into()));
        Sending { id, key, attempt: Some(2), fence, traceparent: Some("00-a-b-01".into()) }
    }

    /// The first is the example of Standard Webhooks.
    #[test]
    fn every_secret_signs() {
        let key = BASE64_STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let (id, seconds, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", br#"{"test": 2432232314}"#);
        let one = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(signatures(std::slice::from_ref(&key), id, seconds, body), one);
        let two = signatures(&[key, b"another".to_vec()], id, seconds, body);
        assert!(two.starts_with(&format!("{one} v1,")) && two.len() == 2 * one.len() + 1, "{two}");
    }

    #[test]
    fn ids_of_any_language_are_sent() {
        assert_eq!(visible("trip-7/hotel/run"), "trip-7/hotel/run");
        assert_eq!(visible("旅行 7%"), "%E6%97%85%E8%A1%8C 7%25");
    }

    #[test]
    fn the_same_key_of_two_businesses_is_two() {
        let of = |kind: &str, id: &str, key| {
            idempotency_key(Some(&Business { kind: kind.into(), id: id.into() }), key, "0r".into())
        };
        assert_eq!(of("order", "7", Some("pay")), "order/7/pay");
        assert_eq!(of("order/7", "8", Some("pay/once")), "order%2F7/8/pay/once");
        assert_eq!(of("订", "7%", Some("付")), "%E8%AE%A2/7%25/%E4%BB%98");
        assert_eq!(
            of("order", "7", None),
            of("order", "7", Some("0r")),
            "a redriven letter's key is the first one's id"
        );
        let alone = |key| idempotency_key(None, key, "0r".into());
        assert_eq!((alone(Some("pay%")), alone(None), alone(Some("a\n"))), ("pay%".into(), "0r".into(), "0r".into()));
    }

    #[test]
    fn the_caller_s_own_key_wins_and_ours_are_ours() {
        let mut headers = HeaderMap::new();
        headers.insert(IDEMPOTENCY_KEY, "mine".parse().unwrap());
        headers.insert(FENCE, "forged".parse().unwrap());
        sending().add_to(&mut headers, &[], b"", Timestamp::from_millis(5_999));
        let value = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!((value(IDEMPOTENCY_KEY), value(FENCE)), (Some("mine".into()), Some("7-3".into())));
        assert_eq!(
            (value(ID), value(TIMESTAMP), value(ATTEMPT)),
            (Some("7".into()), Some("5".into()), Some("2".into()))
        );
        assert_eq!((value(TRACEPARENT), value(SIGNATURE)), (Some("00-a-b-01".into()), None));
    }

    #[test]
    fn credentials_do_not_go_elsewhere() {
        let mut headers = HeaderMap::new();
        for name in ["authorization", "cookie", "x-api-key", "accept", "content-type"] {
            headers.insert(name, "x".parse().unwrap());
        }
        sending().add_to(&mut headers, &[b"k".to_vec()], b"", Timestamp::EPOCH);
        let mut left: Vec<String> = harmless(&headers).keys().map(ToString::to_string).collect();
        left.sort();
        let ours = [IDEMPOTENCY_KEY, ATTEMPT, FENCE, TRACEPARENT, ID, TIMESTAMP];
        assert_eq!(left, [["accept", "content-type"].as_slice(), &ours].concat());
        without_body(&mut headers);
        assert!(
            !headers.contains_key("content-type") && !headers.contains_key(SIGNATURE) && headers.contains_key("cookie")
        );
    }
}
