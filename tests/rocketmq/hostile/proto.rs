//! Protobuf by hand, so that it can be wrong: fields of messages, and those of the service that tests make.

/// A message under construction.
#[derive(Debug, Clone, Default)]
pub struct Fields(Vec<u8>);

impl Fields {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn number(mut self, field: u32, value: i64) -> Self {
        varint(&mut self.0, u64::from(field << 3));
        varint(&mut self.0, value as u64);
        self
    }

    pub fn float(mut self, field: u32, value: f32) -> Self {
        varint(&mut self.0, u64::from(field << 3 | 5));
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn bytes(mut self, field: u32, value: impl AsRef<[u8]>) -> Self {
        varint(&mut self.0, u64::from(field << 3 | 2));
        varint(&mut self.0, value.as_ref().len() as u64);
        self.0.extend(value.as_ref());
        self
    }

    pub fn message(self, field: u32, value: Fields) -> Self {
        self.bytes(field, value.0)
    }

    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

fn varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

pub fn status(code: i64) -> Fields {
    Fields::new().number(1, code).bytes(2, "told to")
}

pub fn ok() -> Fields {
    status(20_000)
}

/// `google.protobuf.Duration` and `Timestamp` are the same on the wire.
pub fn span(seconds: i64, nanos: i64) -> Fields {
    Fields::new().number(1, seconds).number(2, nanos)
}

/// A `TelemetryCommand` with these `Settings`.
pub fn settings(settings: Fields) -> Vec<u8> {
    Fields::new().message(1, ok()).message(2, settings).done()
}

pub fn publishing(max_body_size: i64) -> Fields {
    Fields::new().message(5, Fields::new().number(2, max_body_size).number(3, 1))
}

pub fn exponential(initial: Fields, max: Fields, multiplier: f32) -> Fields {
    let exponential = Fields::new().message(1, initial).message(2, max).float(3, multiplier);
    Fields::new().number(1, 3).message(2, exponential)
}

/// `Endpoints` with one address.
pub fn endpoints(scheme: i64, host: impl AsRef<[u8]>, port: i64) -> Fields {
    Fields::new().number(1, scheme).message(2, Fields::new().bytes(1, host).number(2, port))
}

/// A `MessageQueue` that takes NORMAL messages, at these endpoints.
pub fn queue(topic: &str, endpoints: Option<Fields>) -> Fields {
    let mut broker = Fields::new().bytes(1, "broker");
    if let Some(endpoints) = endpoints {
        broker = broker.message(3, endpoints);
    }
    let queue = Fields::new().message(1, Fields::new().bytes(2, topic)).number(2, 0).number(3, 4);
    queue.message(4, broker).number(5, 1)
}

/// A `QueryRouteResponse`.
pub fn route(queues: impl IntoIterator<Item = Fields>) -> Vec<u8> {
    queues.into_iter().fold(Fields::new().message(1, ok()), |route, queue| route.message(2, queue)).done()
}

/// Frames of a `ReceiveMessageResponse`.
pub fn status_frame(code: i64) -> Vec<u8> {
    Fields::new().message(1, status(code)).done()
}

pub fn message_frame(properties: Fields, body: impl AsRef<[u8]>) -> Vec<u8> {
    let topic = Fields::new().bytes(2, "t");
    let message = Fields::new().message(1, topic).message(3, properties).bytes(4, body);
    Fields::new().message(2, message).done()
}

pub fn time_frame() -> Vec<u8> {
    Fields::new().message(3, span(1, 0)).done()
}

/// `SystemProperties` with an id and a receipt handle.
pub fn properties(id: &str) -> Fields {
    Fields::new().bytes(3, id).bytes(12, format!("handle of {id}"))
}
