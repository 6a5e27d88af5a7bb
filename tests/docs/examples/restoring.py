import sys

import tensorflow as tf

version = sys.argv[1]  # …/models/v=20260301T120000Z-1a2b3c4d
weights, bias = tf.Variable(tf.zeros([2, 1])), tf.Variable(tf.zeros([1]))
step, epoch = tf.Variable(0, dtype=tf.int64), tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(weights=weights, bias=bias, step=step, epoch=epoch)
checkpoint.restore(f"{version}/model").assert_consumed()
