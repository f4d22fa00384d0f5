//! The OpenAPI document, made from the handlers themselves, and a page to read it in a browser.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ComponentsBuilder, ContentBuilder, InfoBuilder, OpenApi, OpenApiBuilder, Ref, ResponseBuilder};
use utoipa::{PartialSchema as _, ToSchema as _};

use super::App;
use super::problem::Problem;

const PAGE: &str = include_str!("openapi.html");
const SCRIPT: &str = include_str!("openapi.js");
const STYLE: &str = include_str!("openapi.css");
/// Where the document and the page are.
pub(super) const PATHS: [&str; 4] = ["/openapi.json", "/docs", "/docs/openapi.js", "/docs/openapi.css"];
/// Nothing but what is served here.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// What every answer may be instead of what was asked for, by status.
const PROBLEMS: &[(u16, &str)] = &[
    (400, "It is not understood: what is wrong, and where."),
    (401, "There is no token, or it is not known."),
    (403, "The token's role may not do this."),
    (404, "There is no such thing."),
    (408, "The body did not come in time."),
    (409, "Something else was done to it meanwhile."),
    (413, "The body is too large."),
    (422, "A value is not valid: all of them are listed."),
    (429, "Too many wrong tokens came from your address."),
    (503, "The database cannot be reached, the server stops, or it took too long; try again."),
];

/// What the document has beside the routes.
pub(super) fn document() -> OpenApi {
    let info = InfoBuilder::new()
        .title("redrive")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(include_str!("openapi.md")));
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    let mut schemas = Vec::new();
    Problem::schemas(&mut schemas);
    let components = ComponentsBuilder::new()
        .security_scheme("token", bearer)
        .schema("Problem", Problem::schema())
        .schemas_from_iter(schemas)
        .build();
    OpenApiBuilder::new()
        .info(info.build())
        .components(Some(components))
        .security(Some([utoipa::openapi::security::SecurityRequirement::new("token", Vec::<String>::new())]))
        .build()
}

/// The document and the page. Both are for everybody: they say nothing but what is in the source.
pub(super) fn routes(mut document: OpenApi) -> Router<App> {
    for (path, item) in &mut document.paths.paths {
        let all = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        if path.starts_with(super::API) {
            all.into_iter().flatten().for_each(add_problems);
        }
    }
    let json = document.to_json().unwrap_or_default(); // plain values cannot fail
    let served = |kind: &'static str, text: String| {
        get(async move || {
            ([(header::CONTENT_TYPE, kind), (header::CONTENT_SECURITY_POLICY, POLICY)], text).into_response()
        })
    };
    let [document, page, script, style] = PATHS;
    Router::new()
        .route(document, served("application/json", json))
        .route(page, served("text/html; charset=utf-8", PAGE.into()))
        .route(script, served("text/javascript; charset=utf-8", SCRIPT.into()))
        .route(style, served("text/css; charset=utf-8", STYLE.into()))
}

fn add_problems(operation: &mut Operation) {
    for (status, said) in PROBLEMS {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        let response = ResponseBuilder::new().description(*said).content("application/problem+json", content);
        operation.responses.responses.entry(status.to_string()).or_insert_with(|| response.build().into());
    }
}
