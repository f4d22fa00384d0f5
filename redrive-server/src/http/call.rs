//! A request as a call that the engine makes good: its policy, what its answer means, what is kept of it.
//!
//! An answer is a success if its status is 2xx or, where the policy has a condition, if that holds: over `status`, `headers`,
//! `body` and `result`. Without success, the status says what it was (`http.503`), and with it, by the policy's lists, whether
//! it is tried again; a 2xx of which the condition does not hold is `unmet` and tried again.

use std::time::Duration;

use redrive::{
    Business, Context, Error, Failure, Key, Kind, Persist, Policy, PolicyPatch, Result, Retryable, Verdict, condition,
};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::answer::Answer;
use super::deliver::{DEFAULT_TIMEOUT, DeliveryError, HttpDelivery};
use super::request::HttpRequest;
use super::{METHOD, method_of};

/// A request to be delivered, with what its caller wants. Only the request is stored as params; the rest becomes the task's.
///
/// ```
/// use redrive::testing::Testing;
/// use redrive::{Settings, assert_enqueued};
/// use redrive_server::http::{HttpCall, HttpDelivery, HttpRequest};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
/// let delivery = HttpDelivery::new(&Settings::default())?;
/// let request = HttpRequest::post("https://example.org/orders").with_body("{}");
/// let call = HttpCall::new(&delivery, request)?.key("order-7").business("order", "7");
/// let engine = Testing::with(|builder| delivery.install(builder)).await;
/// engine.enqueue(call).await?; // or engine.call(call), which tries at once
/// assert_enqueued!(engine, method = "http");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "HttpRequest")]
pub struct HttpCall {
    request: HttpRequest,
    asked: Asked,
}

/// What is not part of the params.
#[derive(Clone, Debug, Default)]
struct Asked {
    method: String,
    target: PolicyPatch,
    policy: PolicyPatch,
    persist: Option<Persist>,
    key: Option<String>,
    dedup_for: Duration,
    business: Option<Business>,
    priority: i16,
    encrypt: bool,
    traceparent: Option<String>,
    created_by: Option<String>,
}

impl HttpCall {
    /// Of a request that can be sent; if it cannot, all that is wrong with it.
    pub fn new(delivery: &HttpDelivery, request: HttpRequest) -> Result<Self> {
        delivery.check(&request)?;
        let target = request.target.as_deref().and_then(|name| delivery.target(name));
        let target = target.map(|target| target.policy().clone()).unwrap_or_default();
        let mut call = Self::from(request);
        call.asked.target = target;
        Ok(call)
    }

    /// With these policy fields instead of the target's or the settings'.
    pub fn policy(mut self, patch: PolicyPatch) -> Self {
        self.asked.policy = patch;
        self
    }

    /// With this key. Default: none, every one is a task of its own.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.asked.key = Some(key.into());
        self
    }

    /// The key goes on standing for it for so long after it is done. Default: not at all.
    pub fn dedup_for(mut self, time: Duration) -> Self {
        self.asked.dedup_for = time;
        self
    }

    /// What it is about.
    pub fn business(mut self, kind: impl Into<String>, id: impl Into<String>) -> Self {
        self.asked.business = Some(Business { kind: kind.into(), id: id.into() });
        self
    }

    /// Among what is due, the greater goes first. Default: 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.asked.priority = priority;
        self
    }

    /// When it is written down, if it is tried at once, whatever the settings say. Default: as they say.
    pub fn persist(mut self, persist: Persist) -> Self {
        self.asked.persist = Some(persist);
        self
    }

    /// With the request encrypted where it is stored.
    pub fn encrypt(mut self) -> Self {
        self.asked.encrypt = true;
        self
    }

    /// The trace of the caller (W3C `traceparent`); it is sent along.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.asked.traceparent = Some(traceparent.into());
        self
    }

    /// Who answers for it.
    pub fn created_by(mut self, who: impl Into<String>) -> Self {
        self.asked.created_by = Some(who.into());
        self
    }
}

/// As it was written down.
impl From<HttpRequest> for HttpCall {
    fn from(request: HttpRequest) -> Self {
        let asked = Asked { method: method_of(request.target.as_deref()), ..Asked::default() };
        Self { request, asked }
    }
}

impl Serialize for HttpCall {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.request.serialize(s)
    }
}

impl Retryable for HttpCall {
    const METHOD: &'static str = METHOD;
    type Output = Answer;
    type Error = CallFailed;

    fn method(&self) -> &str {
        &self.asked.method
    }

    async fn execute(&self, cx: &Context<'_>) -> Result<Answer, CallFailed> {
        let delivery: &HttpDelivery = cx.state()?;
        Ok(Box::pin(delivery.deliver(cx, &self.request, self.asked.traceparent.as_deref())).await?)
    }

    fn policy(&self, defaults: Policy) -> Policy {
        self.asked_policy(self.asked.target.over(defaults))
    }

    fn asked_policy(&self, policy: Policy) -> Policy {
        let policy = self.asked.policy.over(policy);
        Policy { timeout: policy.timeout.or(Some(DEFAULT_TIMEOUT)), ..policy }
    }

    fn asked_persist(&self) -> Option<Persist> {
        self.asked.persist
    }

    fn is_success(&self, answer: &Answer) -> bool {
        answer.is_success()
    }

    fn meets(&self, answer: &Answer, condition: &str) -> bool {
        let headers = serde_json::to_value(&answer.headers).unwrap_or_default();
        let (status, body) = (Value::from(answer.status), answer.body_value());
        let mut result = self.result(answer).unwrap_or_default();
        // What is kept has the text.
        result.as_object_mut().into_iter().for_each(|result| _ = result.insert("body".into(), body.clone()));
        let variables = [("status", &status), ("headers", &headers), ("body", &body), ("result", &result)];
        condition::holds(condition, &variables)
    }

    fn unmet(&self, answer: &Answer) -> Verdict {
        let after = |failure: Failure| match answer.retry_after {
            Some(time) => failure.after(time),
            None => failure,
        };
        if answer.is_success() {
            return Verdict::Retry(after(Failure::retry(Kind::UNMET, answer.unmet())));
        }
        Verdict::Failed(after(Failure::retry(Kind::http(answer.status), answer.said())))
    }

    fn classify(&self, error: &CallFailed) -> Verdict {
        match error {
            CallFailed::Delivery(error) => Verdict::of(error),
            CallFailed::NotInstalled(error) => Verdict::Failed(Failure::retry(Kind::ERROR, error.to_string())),
        }
    }

    fn key(&self) -> Key {
        self.asked.key.clone().map_or(Key::None, Key::Given)
    }

    fn dedup_for(&self) -> Duration {
        self.asked.dedup_for
    }

    fn business(&self) -> Option<Business> {
        self.asked.business.clone()
    }

    fn priority(&self) -> i16 {
        self.asked.priority
    }

    fn encrypt(&self) -> bool {
        self.asked.encrypt
    }

    fn traceparent(&self) -> Option<&str> {
        self.asked.traceparent.as_deref()
    }

    fn created_by(&self) -> Option<&str> {
        self.asked.created_by.as_deref()
    }

    /// A host that hangs must not hold up the others. Targets have methods of their own.
    fn part(&self) -> Option<String> {
        let url = url::Url::parse(&self.request.url).ok().filter(|_| self.request.target.is_none())?;
        Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?))
    }

    fn result(&self, answer: &Answer) -> Option<Value> {
        serde_json::to_value(answer).ok()
    }
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallFailed {
    /// It could not be delivered.
    #[error(transparent)]
    Delivery(#[from] DeliveryError),
    /// The engine does not deliver: [`HttpDelivery::install`] was not used.
    #[error(transparent)]
    NotInstalled(#[from] Error),
}

#[cfg(test)]
mod tests {
    use redrive::{Class, Settings};

    use super::*;

    fn call(toml: &str, request: HttpRequest) -> Result<HttpCall> {
        HttpCall::new(&HttpDelivery::new(&Settings::parse(toml, [].into_iter())?)?, request)
    }

    fn plain() -> HttpCall {
        HttpRequest::post("https://example.org").into()
    }

    #[test]
    fn what_an_answer_means() {
        let class = |status: u16| match plain().unmet(&Answer { status, ..Answer::default() }) {
            Verdict::Failed(failure) => Some(Policy::default().classify(&failure.kind)),
            _ => None,
        };
        for status in [408, 425, 429, 500, 502, 503, 504, 507] {
            assert_eq!(class(status), Some(Class::Retry), "{status}");
        }
        for status in [301, 302, 304, 307, 400, 401, 403, 404, 409, 410, 422, 501, 505] {
            assert_eq!(class(status), Some(Class::Reject), "{status}");
        }
        let unmet =
            plain().unmet(&Answer { status: 202, retry_after: Some(Duration::from_secs(9)), ..Answer::default() });
        let Verdict::Retry(failure) = unmet else { panic!("{unmet:?}") };
        assert_eq!((failure.kind, failure.retry_after), (Kind::UNMET, Some(Duration::from_secs(9))));
    }

    #[test]
    fn a_condition_sees_the_whole_answer() {
        let headers = [("x-state".to_owned(), "done".to_owned())].into();
        let answer = Answer { status: 409, headers, body: Some(r#"{"ok": true}"#.into()), ..Answer::default() };
        for holds in [
            "status == 409",
            "body.ok",
            "headers['x-state'] == 'done'",
            "result.status == 409 && body.ok",
            "result.body.ok && result.headers['x-state'] == 'done'",
            "result.body == body",
        ] {
            assert!(plain().meets(&answer, holds), "{holds}");
        }
        assert!(!plain().meets(&answer, "status < 300") && !plain().meets(&answer, "body.missing"));
        assert_eq!(plain().result(&answer).unwrap()["body"], r#"{"ok": true}"#, "it is kept as it came");
        for body in [None, Some("fine".to_owned())] {
            let answer = Answer { status: 200, body, ..Answer::default() };
            assert!(plain().meets(&answer, "result.body == body"), "{answer:?}");
        }
    }

    #[test]
    fn the_caller_s_policy_is_over_the_target_s_over_the_settings() {
        let toml = "[targets.billing]\nbase_url = 'https://b'\nmax_attempts = 5\ntimeout = '3s'";
        let call = call(toml, HttpRequest::to_target("billing", "/x")).unwrap();
        let defaults = Policy { max_crashes: 9, max_attempts: Some(2), ..Policy::default() };
        let policy = |patch: &[(&str, u32)]| {
            let mut own = PolicyPatch::default();
            patch.iter().for_each(|(field, value)| own.set(field, *value).unwrap());
            Retryable::policy(&call.clone().policy(own), defaults.clone())
        };
        let target = policy(&[]);
        assert_eq!(
            (target.max_attempts, target.max_crashes, target.timeout),
            (Some(5), 9, Some(Duration::from_secs(3)))
        );
        assert_eq!(policy(&[("max_attempts", 7)]).max_attempts, Some(7));
        assert_eq!(call.method(), "http.billing");
        assert_eq!(Retryable::policy(&plain(), defaults).timeout, Some(DEFAULT_TIMEOUT), "an attempt ends");
        assert_eq!(plain().method(), "http");
    }

    #[test]
    fn what_cannot_be_sent_is_refused_before_it_is_written_down() {
        let toml = "[targets.own]\nbase_url = 'http://127.0.0.1:1'\nallow_private = true\n[targets.bad]\nbase_url = 'http://127.1'";
        let delivery = HttpDelivery::new(&Settings::parse(toml, [].into_iter()).unwrap()).unwrap();
        let said = |request| HttpCall::new(&delivery, request).map_or_else(|e| e.to_string(), |_| String::new());
        assert_eq!(said(HttpRequest::to_target("own", "/x")), "");
        for (request, part) in [
            (HttpRequest::to_target("bad", "/x"), "this machine"),
            (HttpRequest::to_target("unknown", "/x"), "there is no target \"unknown\""),
            (HttpRequest::post("http://127.0.0.1:1/x"), "this machine"),
            (HttpRequest::post("http://2130706433/"), "this machine"),
            (HttpRequest::post("http://[::ffff:10.0.0.1]/"), "private"),
            (HttpRequest::post("nowhere"), "url"),
        ] {
            assert!(said(request.clone()).contains(part), "{request:?}: {}", said(request.clone()));
        }
    }

    #[test]
    fn only_the_request_is_stored() {
        let call = plain().key("k").business("order", "7");
        let json = serde_json::to_string(&call).unwrap();
        assert_eq!(json, r#"{"method":"POST","url":"https://example.org"}"#);
        let read: HttpCall = serde_json::from_str(&json).unwrap();
        assert_eq!((&read.request, read.method()), (&call.request, "http"));
    }
}
