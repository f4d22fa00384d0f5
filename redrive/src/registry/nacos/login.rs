//! Logging in to Nacos.
//!
//! The client has a login of its own. Ours takes its place because that one sends the password in the address, where every
//! proxy logs it, and shows it in its own log when the server is down.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nacos_sdk::api::plugin::{AuthContext, AuthPlugin, LoginIdentityContext, RequestResource};
use rustls_platform_verifier::BuilderVerifierExt;
use serde::Deserialize;

use crate::clock::Stopwatch;
use crate::registry::{NacosConfig, Trouble};
use crate::secret::Secret;

/// How long a server may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// So long after a login the next one is tried: servers count them.
const BETWEEN: Duration = Duration::from_secs(5);

/// A user, and what the server gave for the password. The client asks for [`login`](AuthPlugin::login) every 30 s.
pub(super) struct Login {
    http: reqwest::Client,
    user: String,
    password: Secret,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    tried: Option<Stopwatch>,
}

struct Token {
    text: String,
    got: Stopwatch,
    lives: Duration,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Granted {
    access_token: String,
    /// In seconds.
    token_ttl: u64,
}

impl Login {
    /// As the settings say, if they do.
    pub(super) fn of(config: &NacosConfig) -> Result<Option<Self>, Trouble> {
        let (Some(user), Some(password)) = (&config.username, &config.password) else { return Ok(None) };
        // Servers of Nacos speak plain HTTP here; but reqwest makes no client without being told of a TLS.
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(BuilderVerifierExt::with_platform_verifier)?
            .with_no_client_auth();
        let http = reqwest::Client::builder().tls_backend_preconfigured(tls).timeout(TIMEOUT).build()?;
        Ok(Some(Self { http, user: user.clone(), password: password.clone(), state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server has refused what we asked: our token may be no good any more, or there is none.
    pub(super) async fn renew(&self, servers: &[String]) {
        self.state().token = None;
        self.log_in(servers).await;
    }

    /// Asks the servers in turn, if it is time to.
    async fn log_in(&self, servers: &[String]) {
        if !self.state().begin() {
            return;
        }
        for server in servers {
            match self.ask(server).await {
                Ok(token) => return self.state().token = Some(token),
                Err(e) => tracing::warn!(server, error = %e.without_url(), "logging in to Nacos failed"),
            }
        }
    }

    async fn ask(&self, server: &str) -> reqwest::Result<Token> {
        let (got, address) = (Stopwatch::start(), format!("http://{server}/nacos/v1/auth/login"));
        let form = [("username", &*self.user), ("password", self.password.reveal())];
        let request = self.http.post(address).form(&form);
        let granted: Granted = request.send().await?.error_for_status()?.json().await?;
        Ok(Token { text: granted.access_token, got, lives: Duration::from_secs(granted.token_ttl) })
    }
}

impl State {
    /// Whether to log in now: there is no token, or half of its life is over, and the last try is not just past.
    fn begin(&mut self) -> bool {
        let is_fresh = self.token.as_ref().is_some_and(|token| token.got.elapsed() < token.lives / 2);
        let is_time = !is_fresh && self.tried.is_none_or(|tried| tried.elapsed() >= BETWEEN);
        if is_time {
            self.tried = Some(Stopwatch::start());
        }
        is_time
    }
}

impl AuthPlugin for Login {
    fn login<'a, 'f>(
        &'a self,
        servers: Arc<Vec<String>>,
        _: Arc<AuthContext>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        Box::pin(async move { self.log_in(&servers).await })
    }

    fn get_login_identity(&self, _: RequestResource) -> LoginIdentityContext {
        let identity = LoginIdentityContext::default();
        match &self.state().token {
            Some(token) => identity.add_context("accessToken", &*token.text),
            None => identity,
        }
    }
}
