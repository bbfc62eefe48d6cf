//! What a consumer says of messages that it has: calls made ready and their answers read, both on the thread that
//! waits for them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use protobuf::Message as _;

use super::engine::event::{Answers, Prepared};
use super::engine::{encode, malformed};
use super::message::resource;
use super::wire::endpoints::Endpoints;
use super::wire::{code, pb};
use crate::error::{Error, ErrorKind};

/// One delivery of one message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle<'a> {
    pub topic: &'a str,
    pub message_id: &'a str,
    pub receipt_handle: &'a str,
    /// Of the broker that holds it.
    pub endpoints: &'a Endpoints,
}

/// Which handles each of several calls speaks of, by their places.
pub(crate) struct Places(Vec<Vec<usize>>);

/// Acknowledgements, with one call for each topic and broker.
pub(crate) fn acknowledge(namespace: &str, group: &str, handles: &[Handle<'_>]) -> (Places, Vec<Prepared>) {
    let mut places: BTreeMap<(&str, &Endpoints), Vec<usize>> = BTreeMap::new();
    for (index, handle) in handles.iter().enumerate() {
        places.entry((handle.topic, handle.endpoints)).or_default().push(index);
    }
    let call = |(topic, endpoints): &(&str, &Endpoints), indexes: &Vec<usize>| {
        let entries = indexes.iter().filter_map(|index| handles.get(*index)).map(|handle| pb::AckMessageEntry {
            message_id: handle.message_id.to_owned(),
            receipt_handle: handle.receipt_handle.to_owned(),
            ..Default::default()
        });
        let request = pb::AckMessageRequest {
            group: resource(namespace, group),
            topic: resource(namespace, topic),
            entries: entries.collect(),
            ..Default::default()
        };
        Prepared { endpoints: (*endpoints).clone(), request: encode(&request) }
    };
    let calls = places.iter().map(|(place, indexes)| call(place, indexes)).collect();
    (Places(places.into_values().collect()), calls)
}

impl Places {
    /// The result for each handle, in the order of `handles`, which are those that the calls were made of.
    pub(crate) fn results(&self, handles: &[Handle<'_>], answers: Answers) -> Vec<Result<(), Error>> {
        let missing = || Err(Error::new(ErrorKind::Internal, "acknowledge: there is no result"));
        let mut results: Vec<Result<(), Error>> = handles.iter().map(|_| missing()).collect();
        for (indexes, answer) in self.0.iter().zip(answers) {
            let answer = answer.and_then(|body| {
                pb::AckMessageResponse::parse_from_bytes(&body).map_err(|error| malformed("acknowledge", error))
            });
            // By handle, so that a batch costs by its size and not by its square. The first of two entries counts.
            let entries = answer.as_ref().map(|answer| answer.entries.iter().rev()).into_iter().flatten();
            let own: HashMap<&str, Option<&pb::Status>> =
                entries.map(|entry| (entry.receipt_handle.as_str(), entry.status.as_ref())).collect();
            for index in indexes {
                let (Some(handle), Some(result)) = (handles.get(*index), results.get_mut(*index)) else { continue };
                *result = match &answer {
                    Ok(answer) => {
                        let own = own.get(handle.receipt_handle).copied().flatten();
                        one(handle, own, answer.status.as_ref())
                    }
                    Err(error) => Err(error.clone()),
                };
            }
        }
        if mutant!(AckLosesAResult) {
            results.pop();
        }
        results
    }
}

/// What an answer means for one handle: its own status if there is one, else that of the whole.
fn one(handle: &Handle<'_>, own: Option<&pb::Status>, whole: Option<&pb::Status>) -> Result<(), Error> {
    let what = || format!("acknowledge {}", handle.message_id);
    match own.or(whole).map(|status| status.code.value()) {
        Some(code) if own.is_none() && code::is_mixed(code) => {
            Err(malformed(&what(), "its result is missing among several"))
        }
        Some(code) if code::is_success(code) => Ok(()),
        _ => code::check(own.or(whole), &what()),
    }
}

/// A change of the invisible duration.
pub(crate) fn change(namespace: &str, group: &str, handle: &Handle<'_>, invisible: Duration) -> Prepared {
    let request = pb::ChangeInvisibleDurationRequest {
        group: resource(namespace, group),
        topic: resource(namespace, handle.topic),
        receipt_handle: handle.receipt_handle.to_owned(),
        invisible_duration: protobuf::MessageField::some(invisible.into()),
        message_id: handle.message_id.to_owned(),
        ..Default::default()
    };
    Prepared { endpoints: handle.endpoints.clone(), request: encode(&request) }
}

/// The receipt handle that replaces the one of `handle`.
pub(crate) fn changed(handle: &Handle<'_>, answers: Answers) -> Result<String, Error> {
    const WHAT: &str = "change of the invisible duration";
    let missing = || Err(Error::new(ErrorKind::Internal, format!("{WHAT}: there is no result")));
    let body = answers.into_iter().next().unwrap_or_else(missing)?;
    let answer =
        pb::ChangeInvisibleDurationResponse::parse_from_bytes(&body).map_err(|error| malformed(WHAT, error))?;
    code::check(answer.status.as_ref(), WHAT)?;
    match answer.receipt_handle {
        _ if mutant!(KeepsTheOldHandle) => Ok(handle.receipt_handle.to_owned()),
        new if new.is_empty() => Err(malformed(WHAT, "there is no receipt handle")),
        new => Ok(new),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use bytes::Bytes;

    use super::super::wire::endpoints::AccessPoint;
    use super::*;

    fn status(code: i32) -> protobuf::MessageField<pb::Status> {
        let code = protobuf::EnumOrUnknown::from_i32(code);
        protobuf::MessageField::some(pb::Status { code, ..Default::default() })
    }

    /// The answer to `call` with a result of its own for each entry.
    fn each(call: &Prepared, code: impl Fn(&str) -> i32) -> Result<Bytes, Error> {
        let request = pb::AckMessageRequest::parse_from_bytes(&call.request).unwrap();
        let entry = |entry: pb::AckMessageEntry| pb::AckMessageResultEntry {
            status: status(code(&entry.receipt_handle)),
            receipt_handle: entry.receipt_handle,
            ..Default::default()
        };
        let entries = request.entries.into_iter().map(entry).collect();
        Ok(encode(&pb::AckMessageResponse { status: status(30000), entries, ..Default::default() }))
    }

    fn codes(results: &[Result<(), Error>]) -> Vec<Option<i32>> {
        results.iter().map(|result| result.as_ref().err().map(|error| error.code().unwrap_or(0))).collect()
    }

    #[test]
    fn a_large_batch_costs_by_its_size() {
        const MANY: usize = 100_000;
        let endpoints = AccessPoint::parse("127.0.0.1:8081").unwrap().endpoints;
        let names: Vec<String> = (0..MANY).map(|n| format!("handle-{n}")).collect();
        let topics: Vec<String> = (0..100).map(|n| format!("topic-{n}")).collect();
        let handles: Vec<Handle<'_>> = names
            .iter()
            .zip(topics.iter().cycle())
            .map(|(name, topic)| Handle { topic, message_id: name, receipt_handle: name, endpoints: &endpoints })
            .collect();
        for topics in [100, 1] {
            let handles: Vec<Handle<'_>> = match topics {
                1 => handles.iter().map(|handle| Handle { topic: "topic", ..*handle }).collect(),
                _ => handles.clone(),
            };
            let started = Instant::now();
            let (places, calls) = acknowledge("", "group", &handles);
            assert_eq!(calls.len(), topics);
            let refused = |name: &str| if name.ends_with('7') { 40013 } else { 20000 };
            let answers = calls.iter().map(|call| each(call, refused)).collect();
            let results = places.results(&handles, answers);
            // Of real time: it takes a third of a second, and minutes if each result is looked for among all.
            assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
            assert_eq!(results.len(), MANY);
            for (name, result) in names.iter().zip(&results) {
                assert_eq!(result.is_err(), name.ends_with('7'), "{name}");
            }
        }
    }

    #[test]
    fn each_handle_has_a_result_whatever_the_server_leaves_out() {
        let endpoints = AccessPoint::parse("127.0.0.1:8081").unwrap().endpoints;
        let handle = |topic, name| Handle { topic, message_id: name, receipt_handle: name, endpoints: &endpoints };
        let handles = [handle("b", "1"), handle("a", "2"), handle("b", "3"), handle("b", "1")];
        let (places, calls) = acknowledge("", "group", &handles);
        assert_eq!(calls.len(), 2, "by topic: a, b");
        let answer = |code, entries: &[(&str, i32)]| {
            let entry = |(handle, code): &(&str, i32)| pb::AckMessageResultEntry {
                receipt_handle: (*handle).to_owned(),
                status: status(*code),
                ..Default::default()
            };
            let entries = entries.iter().map(entry).collect();
            Ok(encode(&pb::AckMessageResponse { status: status(code), entries, ..Default::default() }))
        };
        let lost = || Err(Error::new(ErrorKind::Transport, "lost"));
        let results = |answers| codes(&places.results(&handles, answers));
        // One is named twice, one not at all, and one that nobody asked about.
        let mixed = answer(30000, &[("1", 40013), ("1", 20000), ("9", 20000)]);
        assert_eq!(results(vec![lost(), mixed]), [Some(40013), Some(0), Some(0), Some(40013)]);
        assert_eq!(
            results(vec![answer(20000, &[]), answer(50001, &[])]),
            [Some(50001), None, Some(50001), Some(50001)]
        );
        assert_eq!(results(vec![answer(20000, &[])]), [Some(0), None, Some(0), Some(0)], "an answer is missing");
        assert_eq!(results(vec![Ok(Bytes::from_static(&[0xff])), answer(20000, &[])]), [None, Some(0), None, None]);
    }

    #[test]
    fn a_changed_handle_is_the_servers() {
        let endpoints = AccessPoint::parse("127.0.0.1:8081").unwrap().endpoints;
        let handle = Handle { topic: "topic", message_id: "1", receipt_handle: "old", endpoints: &endpoints };
        let answer = |code, new: &str| {
            let receipt_handle = new.to_owned();
            let answer =
                pb::ChangeInvisibleDurationResponse { status: status(code), receipt_handle, ..Default::default() };
            changed(&handle, vec![Ok(encode(&answer))])
        };
        assert_eq!(answer(20000, "new").unwrap(), "new");
        assert_eq!(answer(20000, "").unwrap_err().kind(), ErrorKind::Protocol);
        assert_eq!(answer(40013, "new").unwrap_err().code(), Some(40013));
        assert_eq!(changed(&handle, Vec::new()).unwrap_err().kind(), ErrorKind::Internal);
    }
}
