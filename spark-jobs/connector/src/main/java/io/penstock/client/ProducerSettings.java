package io.penstock.client;

import io.penstock.record.Codec;
import java.io.Serializable;

/** How a sink writes. */
public record ProducerSettings(
    Settings cluster, Codec codec, int batchBytes, long bufferBytes, long deliveryMs, long lingerMs)
    implements Serializable {}
