//! One attempt at a step, and what its status means.
//!
//! The status decides, never the text of a body:
//!
//! | status | run, confirm | undo |
//! | --- | --- | --- |
//! | 2xx | done | done |
//! | 202 with `Location`, 425 | under way: asked for again | the same |
//! | 404, 410 | refused | done: there is nothing (left) to undo |
//! | 408, 429, 5xx, no answer | tried again | tried again |
//! | other 4xx | refused: it had no effect | a person is needed |
//! | everything else | not known | a person is needed |
//!
//! What is under way is looked for at its `Location`, if that is at the same origin, for as long as one attempt may take. After that the
//! request is made again, under the same key: whoever has it under way answers as before.
//!
//! A request that was taken (202, 303) is not refused by what is said to a look at it: 4xx is not known then, and an undo of which nothing
//! is found there is tried again.
//!
//! What came of a step, for those after it: `{"status": 201, "headers": {…}, "body": …}`.

use std::borrow::Cow;
use std::time::Duration;

use redrive::Failure;
use redrive::saga::{Op, Ran, StepCx, StepError, StepRunner};
use reqwest::header::HeaderValue;
use serde_json::{Value, json};

use super::face::{Asks, IDEMPOTENCY_KEY, Spec};
use super::template::{Root, Values};
use crate::http::{Answer, DeliveryError, HttpDelivery, HttpRequest, visible};

/// How long what is under way is left alone, if it does not say.
const POLL_EVERY: Duration = Duration::from_secs(2);
/// For how long an attempt asks for it; then it makes room for others.
const POLL_FOR: Duration = Duration::from_secs(10);

pub(super) struct HttpSteps {
    delivery: HttpDelivery,
}

impl HttpSteps {
    pub(super) fn new(delivery: HttpDelivery) -> Self {
        Self { delivery }
    }

    async fn attempt(&self, cx: &StepCx) -> Result<Value, StepError> {
        // Why is not said: it would tell of the request.
        let spec: Spec = serde_json::from_value(cx.spec().clone())
            .map_err(|_| StepError::refused("the step's requests cannot be read"))?;
        let asks = spec
            .asks(cx.op())
            .ok_or_else(|| StepError::refused(format!("there is no request to {} it", cx.op().as_str())))?;
        let request = request(asks, cx)?;
        let answer = self.send(cx, &request).await.map_err(|e| {
            // What was never sent has had no effect.
            if e.is_unsent() { StepError::refused(e) } else { StepError::of(&e) }
        })?;
        match self.polled(cx, &request, answer).await? {
            Ok(answer) => judged(cx.op(), &answer),
            Err(wait) => Err(StepError::Ongoing(wait)),
        }
    }

    async fn send(&self, cx: &StepCx, request: &HttpRequest) -> Result<Answer, DeliveryError> {
        self.delivery.deliver(cx.context(), request, None).await
    }

    /// An answer that is final; or how long to leave alone what is under way.
    async fn polled(
        &self,
        cx: &StepCx,
        request: &HttpRequest,
        mut answer: Answer,
    ) -> Result<Result<Answer, Duration>, StepError> {
        let (mut waited, mut look) = (Duration::ZERO, None);
        while is_under_way(&answer) {
            let wait = answer.retry_after.unwrap_or(POLL_EVERY).max(Duration::from_millis(100));
            look = location(&answer).and_then(|path| elsewhere(request, path)).or(look);
            let Some(look) = look.as_ref().filter(|_| waited + wait <= POLL_FOR) else { return Ok(Err(wait)) };
            tokio::select! {
                () = rest(wait) => waited += wait,
                () = cx.cancelled() => return Ok(Err(wait)),
            }
            answer = self.send(cx, look).await.map_err(|e| StepError::of(&e))?;
            answer.taken = true;
        }
        Ok(Ok(answer))
    }
}

#[expect(clippy::disallowed_methods, reason = "it waits for another service, whose time is nobody's clock")]
async fn rest(time: Duration) {
    tokio::time::sleep(time).await;
}

impl StepRunner for HttpSteps {
    fn run<'a>(&'a self, cx: &'a StepCx) -> Ran<'a> {
        Box::pin(self.attempt(cx))
    }
}

fn request(asks: &Asks, cx: &StepCx) -> Result<HttpRequest, StepError> {
    let mut request = asks.request(&Known(cx)).map_err(StepError::refused)?;
    sendable(&request).map_err(StepError::refused)?;
    request.validate().map_err(StepError::refused)?; // once more: of what it is with its values only a sample was known
    let (key, place) = (cx.key(), cx.place());
    set(
        &mut request,
        [
            (IDEMPOTENCY_KEY, key.as_str()),
            ("redrive-saga", cx.saga_id()),
            ("redrive-saga-step", &place),
            ("redrive-saga-op", cx.op().as_str()),
        ],
    );
    Ok(request)
}

/// Sets headers that are ours. Two that differ in their letters' case alone would both be sent.
fn set<'h>(request: &mut HttpRequest, ours: impl IntoIterator<Item = (&'h str, &'h str)>) {
    for (name, value) in ours {
        request.headers.retain(|other, _| !other.eq_ignore_ascii_case(name));
        request.headers.insert(name.into(), visible(value));
    }
}

/// Whether all its headers can be sent as they are, with values in place of templates. One that cannot be would be left out, and the
/// request would be another.
fn sendable(request: &HttpRequest) -> Result<(), String> {
    let unsendable = |(_, value): &(&String, &String)| HeaderValue::from_str(value).is_err();
    match request.headers.iter().find(unsendable) {
        Some((name, _)) => Err(format!("header {name}: its value must be visible ASCII without line breaks")),
        None => Ok(()),
    }
}

/// What is known when a step is called.
struct Known<'a>(&'a StepCx);

impl Values for Known<'_> {
    fn value(&self, root: &Root) -> Option<Cow<'_, Value>> {
        let cx = self.0;
        match root {
            Root::Input => Some(Cow::Borrowed(cx.input())),
            Root::Step(name) => cx.value_of(name).map(Cow::Borrowed),
            Root::Own => cx.value_of(cx.step()).map(Cow::Borrowed),
            Root::Key => Some(Cow::Owned(visible(&cx.key()).into())), // as the header says it
            Root::RunKey => Some(Cow::Owned(visible(&cx.run_key()).into())),
            Root::SagaId => Some(Cow::Owned(cx.saga_id().into())),
        }
    }
}

fn is_under_way(answer: &Answer) -> bool {
    answer.status == 425 || (answer.status == 202 && location(answer).is_some())
}

fn location(answer: &Answer) -> Option<&str> {
    answer.headers.get("location").map(String::as_str)
}

/// A look at another address of the same origin; none at others.
fn elsewhere(request: &HttpRequest, location: &str) -> Option<HttpRequest> {
    if request.target.is_some() {
        // A target's paths are below its base, and only whole paths can be told from that.
        return None;
    }
    let base = url::Url::parse(&request.url).ok()?;
    let url = base.join(location).ok().filter(|url| url.origin() == base.origin())?;
    let mut look =
        HttpRequest { method: "GET".into(), url: url.into(), body: None, body_base64: None, ..request.clone() };
    look.headers.retain(|name, _| !name.to_ascii_lowercase().starts_with("content-"));
    Some(look)
}

fn judged(op: Op, answer: &Answer) -> Result<Value, StepError> {
    match answer.status {
        200..300 => Ok(json!({ "status": answer.status, "headers": answer.headers, "body": answer.body_value() })),
        404 | 410 if op == Op::Undo && !answer.taken => Ok(Value::Null),
        404 | 410 if op == Op::Undo => {
            let why = format!("it was taken, and is not to be found where it should be: {}", answer.said());
            Err(StepError::Failed(Failure::retry("http.lost", why))) // not http.404, which no retry would mend
        }
        408 | 429 | 500.. => {
            let failure = Failure::retry(format!("http.{}", answer.status), answer.said());
            Err(StepError::Failed(match answer.retry_after {
                Some(time) => failure.after(time),
                None => failure,
            }))
        }
        400..500 if !answer.taken => Err(StepError::refused(answer.said())),
        _ => Err(StepError::unknown(answer.said())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(status: u16) -> Answer {
        Answer { status, ..Answer::default() }
    }

    #[test]
    fn a_step_sends_one_key() {
        let headers = [("Idempotency-Key", "mine"), ("IDEMPOTENCY-KEY", "mine, too"), ("x-a", "a")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let mut request = HttpRequest { headers, ..HttpRequest::default() };
        set(&mut request, [(IDEMPOTENCY_KEY, "trip-7/hotel/run")]);
        let sent: Vec<_> = request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(sent, [(IDEMPOTENCY_KEY, "trip-7/hotel/run"), ("x-a", "a")]);
    }

    #[test]
    fn the_status_decides() {
        for status in [200, 201, 202, 204, 299] {
            assert!(judged(Op::Run, &answer(status)).is_ok(), "{status}");
        }
        for status in [408, 429, 500, 503, 599] {
            assert!(matches!(judged(Op::Run, &answer(status)), Err(StepError::Failed(_))), "{status}");
            assert!(matches!(judged(Op::Undo, &answer(status)), Err(StepError::Failed(_))), "{status}");
        }
        for status in [400, 401, 403, 404, 409, 410, 422] {
            assert!(matches!(judged(Op::Run, &answer(status)), Err(StepError::Refused(_))), "{status}");
            assert!(matches!(judged(Op::Confirm, &answer(status)), Err(StepError::Refused(_))), "{status}");
            assert_eq!(judged(Op::Undo, &answer(status)).is_ok(), [404, 410].contains(&status), "{status}");
        }
        assert!(matches!(judged(Op::Run, &answer(302)), Err(StepError::Unknown(_))));
        let body = Answer { body: Some("FAILURE".into()), ..answer(200) };
        assert!(judged(Op::Run, &body).is_ok(), "whatever the body says");
    }

    proptest! {
        /// Whatever a header is, it is sent as it is, or nothing is.
        #[test]
        fn no_header_is_left_out(value in any::<String>()) {
            let request = HttpRequest { headers: [("x-a".to_owned(), value)].into(), ..HttpRequest::default() };
            prop_assert_eq!(sendable(&request).is_ok(), request.header_map().len() == 1);
        }
    }

    #[test]
    fn what_was_taken_is_not_refused_by_a_look_at_it() {
        let looked = |status| Answer { taken: true, ..answer(status) };
        for status in [400, 401, 403, 404, 409, 410, 422] {
            assert!(matches!(judged(Op::Run, &looked(status)), Err(StepError::Unknown(_))), "{status}");
        }
        for status in [404, 410] {
            let Err(StepError::Failed(failure)) = judged(Op::Undo, &looked(status)) else {
                panic!("{status}: not done")
            };
            assert_eq!(redrive::Policy::default().classify(&failure.kind), redrive::Class::Retry, "{failure:?}");
        }
        assert!(judged(Op::Run, &looked(200)).is_ok() && judged(Op::Undo, &looked(204)).is_ok());
    }

    #[test]
    fn what_is_under_way_says_so() {
        let located =
            |status, to: &str| Answer { headers: [("location".to_owned(), to.to_owned())].into(), ..answer(status) };
        assert!(is_under_way(&answer(425)) && is_under_way(&located(202, "/jobs/7")));
        assert!(!is_under_way(&answer(202)) && !is_under_way(&located(201, "/things/7")));
        let request = HttpRequest::post("https://h.example.org/a/b").with_body("x");
        let at = |to: &str| elsewhere(&request, to).map(|request| request.url);
        assert_eq!(at("/jobs/7").as_deref(), Some("https://h.example.org/jobs/7"));
        assert_eq!(at("../jobs?x=1").as_deref(), Some("https://h.example.org/jobs?x=1"));
        assert_eq!(at("https://elsewhere.example.org/jobs/7"), None);
    }
}
