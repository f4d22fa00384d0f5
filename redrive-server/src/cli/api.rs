//! The API, as commands use it: answered by a server, or by this process on a database.
//!
//! Both take the same requests and give the same answers. Without a server the router is called as a function: there is no
//! socket and no token, and whoever can open the database may do everything, under the name that they give.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderValue, Method, Request, header};
use axum::response::Response;
use futures_util::StreamExt as _;
use redrive::store::Role;
use redrive::{Clock, Settings, Store};
use serde_json::{Map, Value};
use tower::ServiceExt as _;
use url::Url;

use super::Database;
use super::failure::Failure;
use super::out::{Out, aside};
use crate::server::{API, App, Caller, VERSION};

/// A server that is not there is noticed after this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// An answer that is not there then does not come. For what may rightly take long there is no such limit.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Through whom.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Where and how")]
pub(super) struct Where {
    /// Work through this server, with the token in REDRIVE_TOKEN. [env: REDRIVE_SERVER_URL]
    #[arg(long, value_name = "URL", global = true, conflicts_with = "database")]
    server: Option<String>,
    /// The file that has the token, instead of REDRIVE_TOKEN.
    #[arg(long, value_name = "FILE", global = true, conflicts_with = "database")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    database: Database,
    /// Who you are, for the audit, if there is no server. Default: the name of your login.
    #[arg(long, value_name = "NAME", global = true)]
    by: Option<String>,
    /// One JSON object a line instead of a table.
    #[arg(long, global = true)]
    json: bool,
}

impl Where {
    pub(super) fn out(&self) -> Out {
        Out { json: self.json, now: Clock::system().now() }
    }

    /// What is said on the command line wins over what the environment says, and a server over a database.
    pub(super) async fn open(&self) -> anyhow::Result<Api> {
        let from_env = || variable("REDRIVE_SERVER_URL").filter(|_| self.database.database.is_none());
        let server = self.server.clone().or_else(from_env);
        match server {
            Some(_) if self.by.is_some() => {
                Err(Failure::invalid("a server knows who you are by your token: --by is for a database").into())
            }
            None if self.token_file.is_some() => {
                Err(Failure::invalid("a token is for a server: name it with --server").into())
            }
            Some(server) => Ok(Api::Server(Server::new(&server, self.token()?)?)),
            None => {
                let settings = self.database.settings().map_err(Failure::from)?;
                // Whoever meant a server, or another directory, should know what they look at.
                if self.database.is_new_here(&settings) {
                    aside(NEW_HERE);
                }
                Ok(Api::Here(Here::new(settings, self.name()).await?))
            }
        }
    }

    fn token(&self) -> anyhow::Result<Option<String>> {
        let token = match &self.token_file {
            Some(file) => Some(std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?),
            None => variable("REDRIVE_TOKEN"),
        };
        Ok(token.map(|token| token.trim().to_owned()))
    }

    fn name(&self) -> String {
        let login = || ["USER", "LOGNAME", "USERNAME"].iter().find_map(|name| variable(name));
        self.by.clone().or_else(login).unwrap_or_else(|| "unknown".into())
    }
}

const NEW_HERE: &str = "no server and no database was named, and there was no redrive.db in this directory: this is a new one \
                        (--server URL and REDRIVE_TOKEN, or --database URL, name another)";

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// See the module.
pub(super) enum Api {
    Server(Server),
    Here(Here),
}

/// A server, over HTTP.
pub(super) struct Server {
    client: reqwest::Client,
    base: Url,
    /// `Bearer …`
    token: Option<HeaderValue>,
}

/// The API in this process.
pub(super) struct Here {
    router: Router,
    caller: Caller,
}

/// What a list is asked for with.
pub(super) type Query = Map<String, Value>;

impl Api {
    pub(super) async fn get(&self, path: &[&str], query: &Query) -> Result<Value, Failure> {
        self.ask(Method::GET, path, query, Vec::new(), Some(TIMEOUT)).await
    }

    pub(super) async fn post(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        self.ask(Method::POST, path, &Query::new(), body.to_string().into_bytes(), Some(TIMEOUT)).await
    }

    /// The same for what may rightly take long.
    pub(super) async fn post_patiently(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        self.ask(Method::POST, path, &Query::new(), body.to_string().into_bytes(), None).await
    }

    pub(super) async fn put(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        self.ask(Method::PUT, path, &Query::new(), body.to_string().into_bytes(), Some(TIMEOUT)).await
    }

    pub(super) async fn delete(&self, path: &[&str]) -> Result<Value, Failure> {
        self.ask(Method::DELETE, path, &Query::new(), Vec::new(), Some(TIMEOUT)).await
    }

    /// Posts something that is answered line by line, for as long as that takes.
    pub(super) async fn post_for_lines(&self, path: &[&str], body: String) -> Result<Lines, Failure> {
        let answer = self.send(self.request(Method::POST, path, &Query::new(), body.into_bytes())?, None).await?;
        Ok(Lines { body: answer.into_body().into_data_stream(), unread: Vec::new() })
    }

    /// Null if the answer has no body.
    async fn ask(
        &self,
        method: Method,
        path: &[&str],
        query: &Query,
        body: Vec<u8>,
        timeout: Option<Duration>,
    ) -> Result<Value, Failure> {
        let answer = self.send(self.request(method, path, query, body)?, timeout).await?;
        let bytes = read(answer).await?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|e| Failure::failed(format!("the answer is no JSON: {e}")))
    }

    fn request(
        &self,
        method: Method,
        path: &[&str],
        query: &Query,
        body: Vec<u8>,
    ) -> Result<Request<Vec<u8>>, Failure> {
        let mut url = match self {
            Self::Server(server) => server.base.clone(),
            Self::Here(here) => here.base()?,
        };
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(API.split('/').skip(1)).extend(path);
        }
        for (name, value) in query {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            url.query_pairs_mut().append_pair(name, &text);
        }
        let request = Request::builder().method(method).uri(url.as_str()).body(body);
        request.map_err(|e| Failure::invalid(format!("{}: {e}", without_password(url.as_str()))))
    }

    /// An answer that is a success; a problem is a failure.
    async fn send(&self, request: Request<Vec<u8>>, timeout: Option<Duration>) -> Result<Response, Failure> {
        let answer = match self {
            Self::Server(server) => server.send(request, timeout).await?,
            Self::Here(here) => here.send(request).await,
        };
        let status = answer.status();
        if status.is_success() { Ok(answer) } else { Err(Failure::answered(status, &read(answer).await?)) }
    }
}

/// The whole body.
async fn read(answer: Response) -> Result<axum::body::Bytes, Failure> {
    axum::body::to_bytes(answer.into_body(), usize::MAX).await.map_err(|e| broken_off(&e))
}

fn broken_off(e: &axum::Error) -> Failure {
    Failure::new(
        Failure::UNREACHABLE,
        format!("the answer broke off ({}); what was asked for may be done, wholly or in part", causes(e)),
    )
}

/// An address as it can be shown: what may be a name and a password is before its last `@`.
fn without_password(address: &str) -> &str {
    address.rsplit('@').next().unwrap_or_default()
}

/// Why there can be no file for a database of SQLite, if that is so: it says itself that it could not be opened, and no more.
fn no_file(url: &str) -> Option<Failure> {
    let file = url.strip_prefix("sqlite:")?;
    let file = Path::new(file.strip_prefix("//").unwrap_or(file).split('?').next()?);
    let of = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    let why = match of {
        _ if file.is_dir() => format!("{} is a directory, not a file", file.display()),
        Some(dir) if !dir.is_dir() => format!("the directory {}, which it is to be in, does not exist", dir.display()),
        _ => return None,
    };
    Some(Failure::new(Failure::UNREACHABLE, format!("the database {url} could not be opened: {why}")))
}

/// An error with its causes, in one line.
fn causes(e: &dyn std::error::Error) -> String {
    let mut said = e.to_string();
    let mut cause = e.source();
    while let Some(e) = cause {
        let more = e.to_string();
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        cause = e.source();
    }
    said
}

impl Server {
    fn new(url: &str, token: Option<String>) -> Result<Self, Failure> {
        let base = Url::parse(url).ok().filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
        let mut base = base.ok_or_else(|| {
            let url = without_password(url);
            Failure::invalid(format!("{url:?} is no address of a server, as http://127.0.0.1:7070 or https://host is"))
        })?;
        // As `redrive serve` prints it.
        if let Some(path) = base.path().trim_end_matches('/').strip_suffix(API).map(str::to_owned) {
            base.set_path(&path);
        }
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(crate::http::tls()?)
            .redirect(reqwest::redirect::Policy::none()) // a token is for this server alone
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("redrive/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|e| Failure::failed(causes(&e)))?;
        let token = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}")));
        let mut token =
            token.transpose().map_err(|_| Failure::invalid("the token has characters that no token has"))?;
        token.iter_mut().for_each(|token| token.set_sensitive(true));
        Ok(Self { client, base, token })
    }

    async fn send(&self, mut request: Request<Vec<u8>>, timeout: Option<Duration>) -> Result<Response, Failure> {
        if let Some(token) = &self.token {
            request.headers_mut().insert(header::AUTHORIZATION, token.clone());
        }
        let mut request = reqwest::Request::try_from(request).map_err(|e| Failure::invalid(causes(&e)))?;
        *request.timeout_mut() = timeout;
        let unreachable = |e: reqwest::Error| {
            let (e, server) = (e.without_url(), without_password(self.base.authority()));
            Failure::new(Failure::UNREACHABLE, format!("{server} could not be reached: {}", causes(&e)))
        };
        let answer = self.client.execute(request).await.map_err(unreachable)?;
        // Anything may answer with a success: what was asked for is only done if a redrive server says so.
        match answer.headers().contains_key(&VERSION) {
            true => Ok(axum::http::Response::from(answer).map(Body::new)),
            false => Err(Failure::of_another(answer.status())),
        }
    }
}

impl Here {
    async fn new(settings: Settings, name: String) -> Result<Self, Failure> {
        let url = settings.database.as_str();
        let opened = Store::open_with(url, settings.store_options()?).await;
        let store = opened.map_err(|e| no_file(url).unwrap_or_else(|| e.into()))?;
        let router = App::local(store, settings).await?;
        Ok(Self { router, caller: Caller { name, role: Role::Admin } })
    }

    /// The router looks at the path alone.
    fn base(&self) -> Result<Url, Failure> {
        Url::parse("http://here").map_err(|e| Failure::failed(e.to_string()))
    }

    async fn send(&self, request: Request<Vec<u8>>) -> Response {
        let mut request = request.map(Body::from);
        request.extensions_mut().insert(self.caller.clone());
        match self.router.clone().oneshot(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }
}

/// An answer that comes line by line, each a JSON value.
pub(super) struct Lines {
    body: BodyDataStream,
    unread: Vec<u8>,
}

impl Lines {
    /// The next one; `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Value>, Failure> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                let read = serde_json::from_slice(&line);
                return read.map(Some).map_err(|e| Failure::failed(format!("a line of the answer is no JSON: {e}")));
            }
            match self.body.next().await {
                Some(part) => self.unread.extend_from_slice(&part.map_err(|e| broken_off(&e))?),
                None => return Ok(None),
            }
        }
    }
}
