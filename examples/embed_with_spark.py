"""Compute a feature vector for each image of a folder or bucket with Spark.

A worker that is lost is replaced, and its task is done again. A damaged image becomes a row with an error. Needs
`pip install pyspark pandas pyarrow`, and Java.

python examples/embed_with_spark.py IMAGES FEATURES [--model vit_ti16] [--master local[2,4]]
"""

import argparse
import os
import sys

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of the workers on this machine

from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, FloatType, StringType, StructField, StructType

from vit_keras.training import Embedder

ROW = StructType([StructField("features", ArrayType(FloatType())), StructField("error", StringType())])


LOCAL = "local[2,4]"  # this machine: two workers, and four attempts at a task, as on a cluster


def main(images, features, model="vit_cifar10", master=LOCAL, batch_size=32, embedder=Embedder):
    """Write Parquet files with the columns path, features and error into the folder `features`."""

    def make():  # once in each Python worker
        held = embedder(model, batch_size=batch_size)
        return lambda contents: held({"bytes": contents})

    spark = SparkSession.builder.master(master).getOrCreate()
    files = spark.read.format("binaryFile").option("recursiveFileLookup", True).load(images)
    computed = predict_batch_udf(make, return_type=ROW, batch_size=batch_size)("content")
    files.select("path", computed.alias("row")).select("path", "row.*").write.parquet(features)
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images")
    parser.add_argument("features")
    parser.add_argument("--model", default="vit_cifar10")
    parser.add_argument("--master", default=LOCAL)
    main(**vars(parser.parse_args()))
