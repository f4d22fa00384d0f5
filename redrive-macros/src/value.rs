//! The values of options: words, numbers, durations, texts. Each becomes the Rust expression that makes it.
//!
//! What can be checked is checked here, by the same limits as when the program runs, and an error points at the value and
//! says what is allowed.

use std::str::Chars;

use proc_macro2::{Span, TokenStream as Tokens};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Expr, Ident, LitFloat, LitInt, LitStr, Pat, Token, parenthesized};

/// The longest duration in a policy: ten years.
const LONGEST: u64 = 3650 * 24 * 3600 * 1000;
const MOST_ATTEMPTS: u32 = 1_000_000;
const MOST_CRASHES: u32 = 1000;
const MOST_DELAYS: usize = 100;
const LONGEST_KIND: usize = 100;
const LONGEST_METHOD: usize = 500;

/// One of these words; each stands for a path.
pub(crate) fn word(input: ParseStream, ty: &str, words: &[(&str, &str)]) -> syn::Result<Tokens> {
    let allowed = || format!("one of {}", listed(words.iter().map(|(word, _)| *word)));
    let said = input.call(Ident::parse_any).map_err(|e| syn::Error::new(e.span(), allowed()))?;
    let (_, variant) = words.iter().find(|(word, _)| said == word).ok_or_else(|| syn::Error::new(said.span(), allowed()))?;
    let (ty, variant) = (Ident::new(ty, said.span()), Ident::new(variant, said.span()));
    Ok(quote!(::redrive::#ty::#variant))
}

/// `a, b, c`.
pub(crate) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// `5`, or `unlimited`.
pub(crate) fn attempts(input: ParseStream) -> syn::Result<Tokens> {
    let why = format!("a number from 1 to {MOST_ATTEMPTS}, or `unlimited`");
    if input.peek(Ident) {
        let said: Ident = input.parse()?;
        return if said == "unlimited" { Ok(quote!(::core::option::Option::None)) } else { Err(syn::Error::new(said.span(), why)) };
    }
    let n = whole(input, 1, MOST_ATTEMPTS, &why)?;
    Ok(quote!(::core::option::Option::Some(#n)))
}

pub(crate) fn crashes(input: ParseStream) -> syn::Result<Tokens> {
    let n = whole(input, 1, MOST_CRASHES, &format!("a number from 1 to {MOST_CRASHES}"))?;
    Ok(quote!(#n))
}

/// A whole number in these bounds.
fn whole(input: ParseStream, least: u32, most: u32, why: &str) -> syn::Result<u32> {
    let said: LitInt = input.parse().map_err(|e: syn::Error| syn::Error::new(e.span(), why))?;
    let n = said.base10_parse().ok().filter(|n| (least..=most).contains(n));
    n.ok_or_else(|| syn::Error::new(said.span(), why))
}

/// `5` or `-5`.
pub(crate) fn priority(input: ParseStream) -> syn::Result<Tokens> {
    let why = format!("a number from {} to {}; the greater goes first", i16::MIN, i16::MAX);
    let minus = input.parse::<Option<Token![-]>>()?;
    let said: LitInt = input.parse().map_err(|e: syn::Error| syn::Error::new(e.span(), &why))?;
    let n: i32 = said.base10_parse().map_err(|_| syn::Error::new(said.span(), &why))?;
    let n = i16::try_from(if minus.is_some() { -n } else { n }).map_err(|_| syn::Error::new(said.span(), &why))?;
    Ok(quote!(#n))
}

/// A number with or without a fraction, in these bounds.
fn number(input: ParseStream, least: f64, most: f64, why: &str) -> syn::Result<f64> {
    let (span, text) = if input.peek(LitInt) {
        let said: LitInt = input.parse()?;
        (said.span(), said.base10_digits().to_owned())
    } else {
        let said: LitFloat = input.parse().map_err(|e: syn::Error| syn::Error::new(e.span(), why))?;
        (said.span(), said.base10_digits().to_owned())
    };
    let n = text.parse().ok().filter(|n| (least..=most).contains(n));
    n.ok_or_else(|| syn::Error::new(span, why))
}

/// A duration that was checked, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Millis(pub(crate) u64);

impl quote::ToTokens for Millis {
    fn to_tokens(&self, tokens: &mut Tokens) {
        let ms = self.0;
        tokens.extend(quote!(::core::time::Duration::from_millis(#ms)));
    }
}

impl Parse for Millis {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let text: LitStr = input
            .parse()
            .map_err(|e: syn::Error| syn::Error::new(e.span(), "a duration in quotes, such as \"90s\", \"5m\" or \"1h 30m\""))?;
        let (said, refuse) = (text.value(), |why: String| Err(syn::Error::new(text.span(), why)));
        let Ok(duration) = humantime::parse_duration(&said) else {
            return refuse(format!("{said:?} is not a duration such as \"90s\", \"5m\" or \"1h 30m\""));
        };
        match u64::try_from(duration.as_millis()) {
            _ if !duration.subsec_nanos().is_multiple_of(1_000_000) => {
                refuse(format!("{said:?} is not in whole milliseconds, which is how it is stored"))
            }
            Ok(ms) if (1..=LONGEST).contains(&ms) => Ok(Self(ms)),
            _ => refuse(format!("{said:?} is not from \"1ms\" to \"3650days\"")),
        }
    }
}

/// `"1h"`, for a field that may be empty.
pub(crate) fn duration(input: ParseStream) -> syn::Result<Tokens> {
    let time: Millis = input.parse()?;
    Ok(quote!(::core::option::Option::Some(#time)))
}

/// `exponential(initial = "2s", factor = 2, max = "5m")`, `linear(…)`, `fixed("5s")`, `list("1s", "5s")`.
pub(crate) fn backoff(input: ParseStream) -> syn::Result<Tokens> {
    let why = "one of exponential(initial = \"2s\", factor = 2, max = \"10m\"), linear(initial = \"2s\", max = \"10m\"), \
               fixed(\"5s\"), list(\"1s\", \"5s\", \"1m\")";
    let said = input.call(Ident::parse_any).map_err(|e| syn::Error::new(e.span(), why))?;
    match &*said.to_string() {
        "exponential" => {
            let Growth { initial, factor, max } = growth(input, &["initial", "factor", "max"])?;
            Ok(quote!(::redrive::Backoff::exponential(#initial, #factor, #max)))
        }
        "linear" => {
            let Growth { initial, max, .. } = growth(input, &["initial", "max"])?;
            Ok(quote!(::redrive::Backoff::linear(#initial, #max)))
        }
        "fixed" => {
            let every = delays(input, said.span(), 1, "fixed(\"5s\") has one delay")?;
            Ok(quote!(::redrive::Backoff::fixed(#(#every)*)))
        }
        "list" => {
            let delays = delays(input, said.span(), MOST_DELAYS, "list(\"1s\", \"5s\", \"1m\") has from 1 to 100 delays")?;
            Ok(quote!(::redrive::Backoff::list([#(#delays),*])))
        }
        _ => Err(syn::Error::new(said.span(), why)),
    }
}

fn delays(input: ParseStream, name: Span, most: usize, why: &str) -> syn::Result<Vec<Millis>> {
    if !input.peek(syn::token::Paren) {
        return Err(syn::Error::new(name, why));
    }
    let inside;
    parenthesized!(inside in input);
    let delays = Punctuated::<Millis, Token![,]>::parse_terminated(&inside)?;
    if !(1..=most).contains(&delays.len()) {
        return Err(syn::Error::new(name, why));
    }
    Ok(delays.into_iter().collect())
}

/// What a growing backoff is made of. What is not given is as in the policy's own defaults.
struct Growth {
    initial: Millis,
    factor: f64,
    max: Millis,
}

fn growth(input: ParseStream, names: &[&str]) -> syn::Result<Growth> {
    let mut growth = Growth { initial: Millis(2_000), factor: 2.0, max: Millis(600_000) };
    if !input.peek(syn::token::Paren) {
        return Ok(growth);
    }
    let inside;
    let parens = parenthesized!(inside in input);
    let mut seen = Vec::new();
    while !inside.is_empty() {
        let allowed = || format!("one of {}, each once: `initial = \"2s\"`", listed(names.iter().copied()));
        let name = inside.call(Ident::parse_any).map_err(|e| syn::Error::new(e.span(), allowed()))?;
        if !names.iter().any(|allowed| name == allowed) || seen.contains(&name) {
            return Err(syn::Error::new(name.span(), allowed()));
        }
        inside.parse::<Token![=]>()?;
        match &*name.to_string() {
            "initial" => growth.initial = inside.parse()?,
            "factor" => growth.factor = number(&inside, 1.0, 1000.0, "a factor is a number from 1 to 1000")?,
            _ => growth.max = inside.parse()?,
        }
        seen.push(name);
        if !inside.is_empty() {
            inside.parse::<Token![,]>()?;
        }
    }
    if growth.initial > growth.max {
        return Err(syn::Error::new(parens.span.join(), "the longest wait, `max`, is shorter than the first, `initial`"));
    }
    Ok(growth)
}

/// `"1s"`, `none`, `full`, `equal`, `proportional(0.2)`.
pub(crate) fn jitter(input: ParseStream) -> syn::Result<Tokens> {
    if input.peek(LitStr) {
        let most: Millis = input.parse()?;
        return Ok(quote!(::redrive::Jitter::Add(#most)));
    }
    if input.peek(Ident) && input.peek2(syn::token::Paren) {
        let said: Ident = input.parse()?;
        let inside;
        parenthesized!(inside in input);
        if said == "proportional" {
            let share = number(&inside, 0.0, 1.0, "a share of the wait is a number from 0 to 1, such as 0.2")?;
            return Ok(quote!(::redrive::Jitter::Proportional(#share)));
        }
        return Err(syn::Error::new(said.span(), JITTERS));
    }
    word(input, "Jitter", &[("none", "None"), ("full", "Full"), ("equal", "Equal")])
        .map_err(|e| syn::Error::new(e.span(), JITTERS))
}

const JITTERS: &str = "a duration that is added, such as \"1s\", or one of none, full, equal, proportional(0.2)";

/// `(after = 3)`, `(after = "30m")`.
pub(crate) fn notify(inside: ParseStream) -> syn::Result<Tokens> {
    let why = "write notify(after = 3) for the third failure, or notify(after = \"30m\") for half an hour of failing";
    let other = |e: syn::Error| syn::Error::new(e.span(), why);
    let name = inside.call(Ident::parse_any).map_err(other)?;
    if name != "after" {
        return Err(syn::Error::new(name.span(), why));
    }
    inside.parse::<Token![=]>().map_err(other)?;
    let when = if inside.peek(LitStr) {
        let time: Millis = inside.parse()?;
        quote!(::redrive::Notify::FailingFor(#time))
    } else {
        let failures = whole(inside, 1, u32::MAX, why)?;
        quote!(::redrive::Notify::Failures(#failures))
    };
    inside.parse::<Option<Token![,]>>()?;
    Ok(quote!(::core::option::Option::Some(#when)))
}

/// The name of a method.
pub(crate) fn method(input: ParseStream) -> syn::Result<LitStr> {
    let why = format!("a name in quotes, of 1 to {LONGEST_METHOD} bytes, under which tasks of this fn are stored");
    let name: LitStr = input.parse().map_err(|e: syn::Error| syn::Error::new(e.span(), &why))?;
    let text = name.value();
    let ok = (1..=LONGEST_METHOD).contains(&text.len()) && !text.contains('\0') && !text.trim().is_empty();
    if ok { Ok(name) } else { Err(syn::Error::new(name.span(), why)) }
}

/// `"order", order.id`.
pub(crate) fn business(inside: ParseStream, name: Span) -> syn::Result<Tokens> {
    let parts = Punctuated::<Expr, Token![,]>::parse_terminated(inside)?;
    let mut parts = parts.into_iter();
    let (Some(kind), Some(id), None) = (parts.next(), parts.next(), parts.next()) else {
        let why = "business has two parts, what sort of thing it is about and which: business(\"order\", order.id)";
        return Err(syn::Error::new(name, why));
    };
    Ok(quote!(::redrive::Business { kind: ::std::format!("{}", #kind), id: ::std::format!("{}", #id) }))
}

/// `"pay-{order.id}"`, or `none`.
pub(crate) fn key(input: ParseStream) -> syn::Result<Tokens> {
    let why = "a text with expressions in braces, such as \"pay-{order.id}\", or `none`; \
               without this option, the key is made of method and arguments";
    if input.peek(Ident) {
        let said: Ident = input.parse()?;
        return if said == "none" { Ok(quote!(::redrive::Key::None)) } else { Err(syn::Error::new(said.span(), why)) };
    }
    let text: LitStr = input.parse().map_err(|e: syn::Error| syn::Error::new(e.span(), why))?;
    let Template { format, expressions } = Template::read(&text)?;
    if format.is_empty() {
        return Err(syn::Error::new(text.span(), why));
    }
    let format = LitStr::new(&format, text.span());
    Ok(quote_spanned!(text.span()=> ::redrive::Key::Given(::std::format!(#format, #(#expressions),*))))
}

/// A text with expressions in braces, as `format!` takes it: the expressions apart.
struct Template {
    format: String,
    expressions: Vec<Expr>,
}

impl Template {
    fn read(literal: &LitStr) -> syn::Result<Self> {
        let refuse = |why: &str| syn::Error::new(literal.span(), why);
        let mut template = Self { format: String::new(), expressions: Vec::new() };
        let text = literal.value();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let doubled = chars.as_str().starts_with(c);
            match c {
                '{' | '}' if doubled => {
                    template.format.extend([c, c]);
                    chars.next();
                }
                '{' => {
                    let unclosed = || refuse("a `{` is not closed; for a brace in the key write `{{`");
                    let inside = up_to_closing(&mut chars).ok_or_else(unclosed)?;
                    template.expressions.push(expression(&inside, literal)?);
                    template.format.push_str("{}");
                }
                '}' => return Err(refuse("a `}` has no `{` before it; for a brace in the key write `}}`")),
                _ => template.format.push(c),
            }
        }
        Ok(template)
    }
}

/// All before the brace that closes one opened just before.
fn up_to_closing(chars: &mut Chars<'_>) -> Option<String> {
    let (mut inside, mut open) = (String::new(), 1);
    for c in chars {
        match c {
            '{' => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(inside);
        }
        inside.push(c);
    }
    None
}

fn expression(text: &str, literal: &LitStr) -> syn::Result<Expr> {
    LitStr::new(text, literal.span()).parse().map_err(|e| {
        let why = format!("`{{{text}}}` is not an expression over the arguments, such as `{{order.id}}`: {e}");
        syn::Error::new(literal.span(), why)
    })
}

/// Which errors: by their kinds, and by patterns.
#[derive(Default)]
pub(crate) struct Errors {
    pub(crate) kinds: Vec<LitStr>,
    /// Each as `matches!` takes it.
    pub(crate) patterns: Vec<Tokens>,
}

pub(crate) fn errors(inside: ParseStream, name: Span) -> syn::Result<Errors> {
    let mut errors = Errors::default();
    while !inside.is_empty() {
        if inside.peek(LitStr) {
            let kind: LitStr = inside.parse()?;
            check_kind(&kind)?;
            errors.kinds.push(kind);
        } else {
            let pattern = Pat::parse_multi_with_leading_vert(inside)?;
            let guard = if inside.peek(Token![if]) { Some((inside.parse::<Token![if]>()?, inside.parse::<Expr>()?)) } else { None };
            let (token, condition) = guard.unzip();
            errors.patterns.push(quote!(#pattern #token #condition));
        }
        if !inside.is_empty() {
            inside.parse::<Token![,]>()?;
        }
    }
    if errors.kinds.is_empty() && errors.patterns.is_empty() {
        return Err(syn::Error::new(name, "name kinds of errors, such as \"http.503\", or patterns, such as PayError::Timeout(..)"));
    }
    Ok(errors)
}

/// Refuses what cannot be a kind.
pub(crate) fn check_kind(kind: &LitStr) -> syn::Result<()> {
    let text = kind.value();
    let ok = (1..=LONGEST_KIND).contains(&text.len()) && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    let why = || format!("a kind is a name of 1 to {LONGEST_KIND} bytes without spaces, such as \"http.503\"");
    if ok { Ok(()) } else { Err(syn::Error::new(kind.span(), why())) }
}

/// Whether a result is a success.
pub(crate) enum SuccessIf {
    /// A closure, or the path of a fn.
    Test(Expr),
    Cel(LitStr),
}

impl Parse for SuccessIf {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        if input.peek(LitStr) {
            return input.parse().map(Self::Cel);
        }
        match input.parse()? {
            test @ (Expr::Closure(_) | Expr::Path(_)) => Ok(Self::Test(test)),
            other => {
                let why = "a closure, such as |r| r.code == 200, or CEL in quotes, such as \"result.code == 200\"";
                Err(syn::Error::new_spanned(other, why))
            }
        }
    }
}
