//! Fields of protobuf messages over slices.
