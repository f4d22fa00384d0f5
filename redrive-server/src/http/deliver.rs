//! One attempt: sends a request, follows redirects, reads the answer. What the answer means is not said here; see `call`.
//!
//! *State.* Two clients, each with its own guard and its own connections, which are kept alive: one for public addresses and
//! what all may call, one for targets that may be at private ones. The second is used only for a target's own origin.
//!
//! *Invariants.* Nothing is sent to an address that the guard has not seen. A target's secrets go to its own origin only.
//! No more of an answer is read than is kept. An attempt ends: by its policy's time limit, or after 30 s.
//!
//! *Failure.* Everything that is not an answer is a [`DeliveryError`] with a kind: `dns`, `connect`, `tls`, `connect.lost`
//! (it broke off; the request may have arrived), `timeout` (likewise), `refused_address`, `too_many_redirects`.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use redrive::gate::GateConfig;
use redrive::{Builder, Clock, Context, Error, ErrorKind, HttpSettings, Kind, MethodOptions, Result, Settings};
use reqwest::header::{CONTENT_LENGTH, HeaderMap, LOCATION};
use reqwest::{Client, Method, StatusCode, Url};
use rustls_platform_verifier::BuilderVerifierExt;

use super::answer::Answer;
use super::call::HttpCall;
use super::guard::{Guard, Refused, Unresolved};
use super::headers::{Sending, harmless, without_body};
use super::redirect::{Next, next};
use super::request::HttpRequest;
use super::target::Target;
use super::{METHOD, method_of};

/// Delivers requests. Handlers find it as a value of the engine: see [`install`](Self::install). Cheap to clone; clones share
/// their connections.
#[derive(Clone, Debug)]
pub struct HttpDelivery(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    targets: BTreeMap<String, Target>,
    public: Route,
    private: Route,
    max_redirects: u32,
    gate: GateConfig,
}

/// A client and what it may call.
#[derive(Debug)]
struct Route {
    guard: Guard,
    client: Client,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DeliveryError {
    kind: Kind,
    message: String,
    /// Whether a first address was called, and has sent us on.
    redirected: bool,
}

/// How long an attempt may take if its policy does not say.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Many servers close a connection after a minute or more without a request.
const KEEP_IDLE: Duration = Duration::from_secs(45);

/// Requests without a target that one host gets at once from one node.
const EACH_HOST: usize = 100;
/// As many of them a host gets until it has answered: hosts that hang must not take all places of a node.
const NEW_HOST: usize = 10;

impl HttpDelivery {
    /// Under these settings.
    pub fn new(settings: &Settings) -> Result<Self> {
        let HttpSettings { allow, max_redirects, gate, .. } = &settings.http;
        let target = |(name, target): (&String, _)| Ok((name.clone(), Target::new(name, target)?));
        let (tls, guard) = (tls()?, Guard::new(allow));
        Ok(Self(Arc::new(Shared {
            targets: settings.targets.iter().map(target).collect::<Result<_>>()?,
            public: Route::new(guard.clone(), tls.clone())?,
            private: Route::new(guard.allow_private(), tls)?,
            max_redirects: *max_redirects,
            gate: gate.clone(),
        })))
    }

    /// Makes an engine deliver: requests without a target under the method `http`, those to a target under `http.` and its
    /// name, with its limits.
    pub fn install(self, builder: Builder) -> Builder {
        // By host: each has its turn, and its share.
        let each = MethodOptions::default().concurrency(EACH_HOST).unproven(NEW_HOST).gate(self.0.gate.clone());
        let plain = builder.handler_as::<HttpCall>(METHOD, each).split(METHOD);
        let with = |builder: Builder, target: &Target| {
            let mut limits = target.limits();
            limits.gate.get_or_insert_with(|| self.0.gate.clone());
            builder.handler_as::<HttpCall>(method_of(Some(target.name())), limits)
        };
        self.0.targets.values().fold(plain, with).state(self.clone())
    }

    /// The client for targets that may be at private addresses: for measuring what it does by itself.
    pub(crate) fn client(&self) -> &Client {
        &self.0.private.client
    }

    /// The circuit breaker of whatever has none of its own.
    pub(crate) fn gate(&self) -> &GateConfig {
        &self.0.gate
    }

    /// All targets.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Target> {
        self.0.targets.values()
    }

    /// The target of this name.
    pub fn target(&self, name: &str) -> Option<&Target> {
        self.0.targets.get(name)
    }

    /// Whether a request can be sent as far as that is known beforehand; if not, all that is wrong with it.
    pub fn check(&self, request: &HttpRequest) -> Result<()> {
        request.validate()?;
        if let Some(name) = &request.target
            && self.target(name).is_none()
        {
            return Err(Error::invalid("target", format!("there is no target {name:?} in the settings")));
        }
        let (url, target) = self.address(request).map_err(|e| Error::invalid("url", e.message))?;
        self.route(target, &url).guard.check_url(&url).map_err(|e| Error::invalid("url", e.to_string()))
    }

    /// Sends a request once; `traceparent` is that of a call that is not written down yet.
    pub async fn deliver(
        &self,
        cx: &Context<'_>,
        request: &HttpRequest,
        traceparent: Option<&str>,
    ) -> Result<Answer, DeliveryError> {
        // A call that is not written down has its policy's limit around it; so has a task whose policy gives one.
        let limit = cx.task().filter(|task| task.policy.timeout.is_none()).map(|_| DEFAULT_TIMEOUT);
        self.ask(request, &Sending::new(cx, traceparent), limit).await
    }

    /// Sends a request that belongs to no task, under an id that says which it is.
    pub(crate) async fn deliver_alone(
        &self,
        id: String,
        request: &HttpRequest,
        limit: Duration,
    ) -> Result<Answer, DeliveryError> {
        self.ask(request, &Sending::alone(id), Some(limit)).await
    }

    async fn ask(
        &self,
        request: &HttpRequest,
        sending: &Sending,
        limit: Option<Duration>,
    ) -> Result<Answer, DeliveryError> {
        let hop = self.first(request, sending)?;
        let target = hop.target;
        let answer = match limit {
            Some(limit) => within(limit, self.follow(hop)).await?,
            None => self.follow(hop).await?,
        };
        Ok(match target.filter(|target| target.has_secrets()) {
            Some(target) => answer.hiding(|bytes| target.hide_in(bytes)),
            None => answer,
        })
    }

    /// Where a request goes.
    fn address(&self, request: &HttpRequest) -> Result<(Url, Option<&Target>), DeliveryError> {
        let unsendable = |why: String| DeliveryError::new("invalid_data", why);
        let Some(name) = &request.target else { return Ok((request.address().map_err(unsendable)?, None)) };
        let missing = || DeliveryError::new("unknown_target", format!("there is no target {name:?} in the settings"));
        let target = self.target(name).ok_or_else(missing)?;
        Ok((target.url(&request.url).map_err(unsendable)?, Some(target)))
    }

    fn route(&self, target: Option<&Target>, url: &Url) -> &Route {
        let private = target.is_some_and(|target| target.allows_private() && target.is_at(url));
        if private { &self.0.private } else { &self.0.public }
    }

    fn first(&self, request: &HttpRequest, sending: &Sending) -> Result<Hop<'_>, DeliveryError> {
        let unsendable = |why: String| DeliveryError::new("invalid_data", why);
        let (url, target) = self.address(request)?;
        let (method, body) = (request.parsed_method().map_err(unsendable)?, request.bytes().map_err(unsendable)?);
        let mut headers = request.header_map();
        let keys = target.map_or(&[][..], Target::keys);
        sending.add_to(&mut headers, keys, &body, Clock::system().now());
        target.iter().for_each(|target| target.add_headers(&mut headers));
        Ok(Hop { target, url, method, headers, body: body.into() })
    }

    async fn follow(&self, mut hop: Hop<'_>) -> Result<Answer, DeliveryError> {
        let most = self.0.max_redirects;
        let (mut left, mut taken) = (most, false);
        loop {
            let response = self.send(&hop).await.map_err(|e| DeliveryError { redirected: left < most, ..e })?;
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let note = match next(&hop.method, &hop.url, response.status(), location) {
                Next::Answer => None,
                Next::NotFollowed(why) => Some(format!("not followed: {why}")),
                Next::To { .. } if most == 0 => Some("not followed: the settings say so".into()),
                Next::To { .. } if left == 0 => {
                    let why = format!("more than {most} redirects, the last to {}", shown(&hop.url));
                    return Err(DeliveryError::new("too_many_redirects", why));
                }
                Next::To { url, method, with_body } => {
                    left -= 1;
                    taken |= response.status() == StatusCode::SEE_OTHER;
                    hop = hop.to(url, method, with_body);
                    continue;
                }
            };
            let answer = Answer::read(response, Clock::system().now()).await;
            return answer.map(|answer| Answer { note, taken, ..answer }).map_err(|e| DeliveryError::of(&e, &hop.url));
        }
    }

    async fn send(&self, hop: &Hop<'_>) -> Result<reqwest::Response, DeliveryError> {
        let Route { guard, client } = self.route(hop.target, &hop.url);
        guard.check_url(&hop.url).map_err(|e| DeliveryError::of(&e, &hop.url))?;
        let mut request = client.request(hop.method.clone(), hop.url.clone()).headers(hop.headers.clone());
        if !hop.body.is_empty() {
            request = request.body(hop.body.clone());
        } else if matches!(hop.method, Method::POST | Method::PUT | Method::PATCH) {
            // A body is expected of these: some servers answer 411 if it is not said that there is none.
            request = request.header(CONTENT_LENGTH, 0);
        }
        request.send().await.map_err(|e| DeliveryError::of(&e.without_url(), &hop.url))
    }
}

/// A request on its way.
struct Hop<'a> {
    target: Option<&'a Target>,
    url: Url,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
}

impl Hop<'_> {
    /// The next one after a redirect.
    fn to(mut self, url: Url, method: Method, with_body: bool) -> Self {
        if url.origin() != self.url.origin() {
            self.headers = harmless(&self.headers);
        }
        if !with_body {
            without_body(&mut self.headers);
            self.body.clear();
        }
        Self { url, method, ..self }
    }
}

async fn within<T>(
    limit: Duration,
    attempt: impl Future<Output = Result<T, DeliveryError>>,
) -> Result<T, DeliveryError> {
    let late = |_| DeliveryError::new(Kind::TIMEOUT, format!("no answer within {}", humantime::format_duration(limit)));
    tokio::time::timeout(limit, attempt).await.map_err(late)?
}

impl Route {
    /// No proxy: it would resolve names, and the guard would see its address alone. Redirects are followed by us.
    fn new(guard: Guard, tls: rustls::ClientConfig) -> Result<Self> {
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .dns_resolver(guard.clone())
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(KEEP_IDLE)
            .user_agent(concat!("redrive/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|e| unusable(&e))?;
        Ok(Self { guard, client })
    }
}

/// TLS by rustls and ring with the system's certificates, like everything here.
pub(crate) fn tls() -> Result<rustls::ClientConfig> {
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(BuilderVerifierExt::with_platform_verifier);
    Ok(config.map_err(|e| unusable(&e))?.with_no_client_auth())
}

fn unusable(e: &dyn StdError) -> Error {
    Error::invalid("http", format!("the client cannot be set up: {}", chain(e)))
}

impl DeliveryError {
    /// Whether nothing was sent to anybody.
    pub(crate) fn is_unsent(&self) -> bool {
        let never_left = ["refused_address", "invalid_data", "unknown_target"].contains(&self.kind.as_str());
        never_left && !self.redirected
    }

    fn new(kind: impl Into<Kind>, message: impl Into<String>) -> Self {
        Self { kind: kind.into(), message: message.into(), redirected: false }
    }

    /// What a client's error means.
    fn of(error: &(dyn StdError + 'static), url: &Url) -> Self {
        let client = error.downcast_ref::<reqwest::Error>();
        let kind = if cause::<Refused>(error).is_some() {
            Kind::of("refused_address")
        } else if cause::<Unresolved>(error).is_some() {
            Kind::of("dns")
        } else if cause::<rustls::Error>(error).is_some() {
            Kind::of("tls")
        } else if client.is_some_and(reqwest::Error::is_connect) {
            Kind::CONNECT
        } else if client.is_some_and(reqwest::Error::is_timeout) {
            Kind::TIMEOUT
        } else if client.is_some_and(reqwest::Error::is_builder) {
            Kind::of("invalid_data")
        } else {
            Kind::of("connect.lost")
        };
        Self::new(kind, format!("{}: {}", shown(url), chain(error)))
    }
}

impl ErrorKind for DeliveryError {
    fn kind(&self) -> Kind {
        self.kind.clone()
    }
}

/// An address for people: without its path, which may have tokens in it.
fn shown(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// The cause of this type, if there is one. What an I/O error is made of is not among its sources.
fn cause<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        next = inner.map(|inner| inner as &(dyn StdError + 'static)).or_else(|| error.source());
    }
    None
}

/// What the client's layers say of an error whose cause says it all.
const SAY_NOTHING: &[&str] =
    &["error sending request", "client error (Connect)", "client error (SendRequest)", "tcp connect error"];

/// An error and its causes, each once.
fn chain(error: &dyn StdError) -> String {
    let mut said = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let more = error.to_string();
        next = error.source();
        let is_news = next.is_none() || !SAY_NOTHING.contains(&more.as_str());
        if is_news && !said.contains(&more) {
            said = if said.is_empty() { more } else { format!("{said}: {more}") };
        }
    }
    said
}
